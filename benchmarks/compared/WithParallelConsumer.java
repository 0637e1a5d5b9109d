import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;

/** Confluent's parallel consumer, ordered by key, with its defaults for commits and retries. */
public class WithParallelConsumer {
    static final boolean FIXED = "1".equals(System.getenv("FIXED"));
    static final Pattern FIELDS = Pattern.compile(
            "\"n\": (\\d+), \"seconds\": ([\\d.]+), \"fails\": \"(\\w*)\"");

    static synchronized void say(String event, String n, String key) {
        System.out.printf("%.6f %s %s %s%n", System.currentTimeMillis() / 1000.0, event, n, key);
        System.out.flush();
    }

    static void work(ConsumerRecord<String, String> record) {
        Matcher message = FIELDS.matcher(record.value());
        message.find();
        say("start", message.group(1), record.key());
        try {
            Thread.sleep(FIXED ? 1 : (long) (1000 * Double.parseDouble(message.group(2))));
        } catch (InterruptedException error) {
            say("cut", message.group(1), record.key());
            throw new RuntimeException(error);
        }
        if (!message.group(3).isEmpty() && !FIXED) {
            say("fail", message.group(1), record.key());
            throw new IllegalArgumentException("cannot be handled");
        }
        say("end", message.group(1), record.key());
    }

    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", System.getenv("KAFKA"));
        properties.put("group.id", System.getenv("GROUP"));
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("session.timeout.ms", "10000");
        properties.put("max.poll.interval.ms", "20000");
        String text = "org.apache.kafka.common.serialization.StringDeserializer";
        properties.put("key.deserializer", text);
        properties.put("value.deserializer", text);
        int size = Integer.parseInt(System.getenv().getOrDefault("BATCH", "0"));
        var options = ParallelConsumerOptions.<String, String>builder()
                .ordering(ParallelConsumerOptions.ProcessingOrder.KEY)
                .maxConcurrency(Integer.parseInt(System.getenv().getOrDefault("CONCURRENCY", "16")))
                .consumer(new KafkaConsumer<String, String>(properties));
        if (size > 0) {
            options = options.batchSize(size);
        }
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options.build());
        processor.subscribe(List.of(System.getenv("TOPIC")));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> processor.closeDrainFirst(Duration.ofSeconds(5))));
        processor.poll(context -> {
            if (size > 0) {
                say("batch", String.valueOf(context.size()), "");
            }
            context.getConsumerRecordsFlattened().forEach(WithParallelConsumer::work);
        });
    }
}
