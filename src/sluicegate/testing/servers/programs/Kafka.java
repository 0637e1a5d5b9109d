import java.io.IOException;
import java.io.PrintStream;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.utils.Time;

/**
 * One Kafka node, broker and controller, with the settings given as name=value after the folder of its properties. Formats its storage the
 * first time. Says "ready" on its output when it takes requests; whatever else it says goes to its error output. Ends in order by SIGTERM.
 */
public final class Kafka {
    private static final long LOOK_EVERY = 10;

    public static void main(String[] arguments) throws Exception {
        PrintStream output = System.out;
        System.setOut(System.err);
        Path folder = Path.of(arguments[0]);
        Properties settings = new Properties();
        for (String argument : List.of(arguments).subList(1, arguments.length)) {
            int equals = argument.indexOf('=');
            settings.setProperty(argument.substring(0, equals), argument.substring(equals + 1));
        }
        format(folder, settings);
        KafkaRaftServer server = new KafkaRaftServer(KafkaConfig.fromProps(settings), Time.SYSTEM);
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        server.startup();
        awaitMetadata(settings);
        output.println("ready");
        output.flush();
        server.awaitShutdown();
    }

    /**
     * Waits until clients are told of a broker, which may come after the start: until then they find no node to ask. Without a listener that
     * is called PLAINTEXT it does not wait.
     */
    private static void awaitMetadata(Properties settings) throws Exception {
        String plain = "PLAINTEXT://";
        int start = settings.getProperty("listeners").indexOf(plain);
        if (start < 0) {
            return;
        }
        String address = settings.getProperty("listeners").substring(start + plain.length()).split(",")[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", (Object) address))) {
            while (admin.describeCluster().controller().get() == null) {
                Thread.sleep(LOOK_EVERY);
            }
        }
    }

    private static void format(Path folder, Properties settings) throws IOException {
        Path file = folder.resolve("server.properties");
        StringWriter text = new StringWriter();
        settings.store(text, null);
        Files.writeString(file, text.toString());
        String[] command = {"format", "--ignore-formatted", "--cluster-id", "cGVuc3RvY2stY2x1c3Rlcg", "--config", file.toString()};
        if (StorageTool.execute(command, System.err) != 0) {
            System.exit(1);
        }
    }
}
