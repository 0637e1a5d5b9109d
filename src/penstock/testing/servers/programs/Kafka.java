import java.io.IOException;
import java.io.PrintStream;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.common.utils.Time;

/**
 * One Kafka node, broker and controller, with the settings given as name=value after the folder of its properties. Formats its storage the
 * first time. Says "ready" on its output when it takes requests; whatever else it says goes to its error output. Ends in order by SIGTERM.
 */
public final class Kafka {
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
        output.println("ready");
        output.flush();
        server.awaitShutdown();
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
