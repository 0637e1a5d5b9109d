package sluicegate.benchmarks;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.util.Iterator;
import org.apache.spark.api.java.function.VoidFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyIn;

/**
 * One binary COPY per partition, of five columns: bigint, integer, timestamptz, double precision,
 * text. No ledger, no second try, and one refused row refuses its partition.
 */
public final class CopyWriter implements VoidFunction<Iterator<InternalRow>> {
  private static final int BUFFER = 64 * 1024;
  private static final int FIXED = 2 + 5 * 4 + 8 + 4 + 8 + 8;
  private static final long MICROS_TO_2000 = 946_684_800_000_000L;
  private static final byte[] SIGNATURE =
      "PGCOPY\n\377\r\n\0\0\0\0\0\0\0\0\0".getBytes(StandardCharsets.ISO_8859_1);

  private final String url;
  private final String user;
  private final String password;
  private final String table;

  private CopyWriter(String url, String user, String password, String table) {
    this.url = url;
    this.user = user;
    this.password = password;
    this.table = table;
  }

  public static void append(
      Dataset<Row> rows, String url, String user, String password, String table) {
    ((org.apache.spark.sql.classic.Dataset<Row>) rows)
        .queryExecution()
        .toRdd()
        .toJavaRDD()
        .foreachPartition(new CopyWriter(url, user, password, table));
  }

  @Override
  public void call(Iterator<InternalRow> rows) throws Exception {
    try (Connection connection = DriverManager.getConnection(url, user, password)) {
      CopyIn copy =
          connection
              .unwrap(PGConnection.class)
              .getCopyAPI()
              .copyIn("COPY " + table + " FROM STDIN (FORMAT binary)");
      ByteBuffer buffer = ByteBuffer.allocate(BUFFER).put(SIGNATURE);
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        byte[] note = row.isNullAt(4) ? new byte[0] : row.getUTF8String(4).getBytes();
        if (buffer.remaining() < FIXED + note.length) {
          send(copy, buffer);
          if (buffer.capacity() < FIXED + note.length) {
            buffer = ByteBuffer.allocate(FIXED + note.length);
          }
        }
        put(buffer, row, note);
      }
      send(copy, buffer);
      copy.writeToCopy(new byte[] {-1, -1}, 0, 2);
      copy.endCopy();
    }
  }

  private static void put(ByteBuffer buffer, InternalRow row, byte[] note) {
    buffer.putShort((short) 5);
    if (row.isNullAt(0)) buffer.putInt(-1);
    else buffer.putInt(8).putLong(row.getLong(0));
    if (row.isNullAt(1)) buffer.putInt(-1);
    else buffer.putInt(4).putInt(row.getInt(1));
    if (row.isNullAt(2)) buffer.putInt(-1);
    else buffer.putInt(8).putLong(row.getLong(2) - MICROS_TO_2000);
    if (row.isNullAt(3)) buffer.putInt(-1);
    else buffer.putInt(8).putDouble(row.getDouble(3));
    if (row.isNullAt(4)) buffer.putInt(-1);
    else buffer.putInt(note.length).put(note);
  }

  private static void send(CopyIn copy, ByteBuffer buffer) throws Exception {
    copy.writeToCopy(buffer.array(), 0, buffer.position());
    buffer.clear();
  }
}
