import java.io.PrintStream;
import java.util.List;
import java.util.Map;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.unit.TimeValue;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.Plugin;
import org.opensearch.transport.Netty4Plugin;

/**
 * One OpenSearch node with the settings given as name=value. Says "ready" on its output when it takes requests; whatever else it says goes
 * to its error output. Ends in order by SIGTERM.
 */
public final class OpenSearch {
    private static final class Single extends Node {
        Single(Settings settings) {
            super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "sluicegate"),
                List.<Class<? extends Plugin>>of(Netty4Plugin.class), false);
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream output = System.out;
        System.setOut(System.err);
        Settings.Builder settings = Settings.builder();
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            settings.put(argument.substring(0, equals), argument.substring(equals + 1));
        }
        Node node = new Single(settings.build());
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }));
        node.start();
        node.client().admin().cluster().prepareHealth().setWaitForYellowStatus().setTimeout(TimeValue.timeValueSeconds(30)).get();
        output.println("ready");
        output.flush();
        Thread.currentThread().join();
    }
}
