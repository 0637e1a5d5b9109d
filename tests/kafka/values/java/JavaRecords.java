import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.common.serialization.Serializer;

/**
 * Prints the records of records.txt, a line of base64 each, as a Java producer writes them.
 * Arguments: the URL of a registry, ending in /apis/registry/v2, and the file with the schema.
 */
public class JavaRecords {
    public static void main(String[] arguments) throws Exception {
        Schema schema = new Schema.Parser().parse(Files.readString(Path.of(arguments[1])));
        try (Serializer<GenericRecord> serializer = new AvroKafkaSerializer<>()) {
            serializer.configure(
                    Map.of(
                            "apicurio.registry.url", arguments[0],
                            "apicurio.registry.auto-register", "true",
                            "apicurio.registry.headers.enabled", "false",
                            "apicurio.registry.use-id", "contentId",
                            "apicurio.registry.id-handler",
                                    "io.apicurio.registry.serde.Legacy4ByteIdHandler"),
                    false);
            for (int number = 0; number < 3; number++) {
                byte[] bytes = serializer.serialize("orders", record(schema, number));
                System.out.println(Base64.getEncoder().encodeToString(bytes));
            }
        }
    }

    private static GenericRecord record(Schema schema, int number) {
        GenericRecord record = new GenericData.Record(schema);
        record.put("id", 7_000_000_000L + number);
        record.put("customer", "Zoë " + number);
        record.put("amount", ByteBuffer.wrap(new BigDecimal("-12.30").unscaledValue().toByteArray()));
        record.put("placed", 1_700_000_000_123_456L + number);
        record.put("seen", 1_700_000_000_123L);
        record.put("local", 1_700_000_000_123L);
        record.put("day", 19_675);
        record.put("at", 45_296_789);
        record.put("token", "6ba7b810-9dad-11d1-80b4-00c04fd430c8");
        record.put("state", new GenericData.EnumSymbol(schema.getField("state").schema(), "PAID"));
        Schema digest = schema.getField("digest").schema();
        record.put("digest", new GenericData.Fixed(digest, new byte[] {1, 2, 3, (byte) 255}));
        record.put("note", number == 0 ? null : "note " + number);
        Schema item = schema.getField("items").schema().getElementType();
        GenericRecord first = new GenericData.Record(item);
        first.put("sku", "a");
        first.put("count", -1 - number);
        record.put("items", List.of(first));
        record.put("labels", Map.of("red", 1.5));
        return record;
    }
}
