import java.io.IOException;
import java.io.PrintStream;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Properties;
import java.util.stream.Stream;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.common.utils.Time;

/**
 * One Kafka node, broker and controller, with the settings given as name=value after the folder that everything of it lies in. Formats its
 * storage the first time. Says "ready" on its output when it takes requests; whatever else it says goes to its error output. Ends in order
 * by SIGTERM. When its input ends, as it does when whoever started it is gone, it ends too, and removes the folder.
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
        while (System.in.read() >= 0) {
            continue;
        }
        server.shutdown();
        remove(folder);
        Runtime.getRuntime().halt(0);
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

    private static void remove(Path folder) throws IOException {
        try (Stream<Path> found = Files.walk(folder)) {
            for (Path path : found.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(path);
            }
        }
    }
}
