import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kudu.client.Insert;
import org.apache.kudu.client.KuduClient;
import org.apache.kudu.client.KuduSession;
import org.apache.kudu.client.KuduTable;
import org.apache.kudu.client.LocatedTablet;
import org.apache.kudu.client.OperationResponse;
import org.apache.kudu.client.SessionConfiguration;

/**
 * Writes row after row through upstream's Java client, kills the server that leads the table's only tablet, and prints
 * the seconds from the kill to the acknowledgement of a row sent after it.
 *
 * <p>Arguments: MASTER TABLE PIDS, where PIDS is a file of "host:port pid" lines.
 */
public class Failover {
  private static volatile long begunAt;
  private static volatile long acknowledgedAt;

  public static void main(String[] arguments) throws Exception {
    KuduClient client = new KuduClient.KuduClientBuilder(arguments[0]).build();
    KuduTable table = client.openTable(arguments[1]);
    Thread writer = new Thread(() -> write(client, table));
    writer.setDaemon(true);
    writer.start();
    while (acknowledgedAt == 0) {
      Thread.sleep(10);
    }
    Thread.sleep(2_000);
    LocatedTablet tablet = table.getTabletsLocations(30_000).get(0);
    LocatedTablet.Replica replica = tablet.getLeaderReplica();
    String leader = replica.getRpcHost() + ":" + replica.getRpcPort() + " ";
    long pid = 0;
    for (String line : Files.readAllLines(Path.of(arguments[2]))) {
      if (line.startsWith(leader)) {
        pid = Long.parseLong(line.split(" ")[1]);
      }
    }
    if (pid == 0) {
      throw new IllegalStateException("no pid is known of " + leader); // and `kill -9 0` is everybody
    }
    new ProcessBuilder("kill", "-9", Long.toString(pid)).start().waitFor();
    long killed = System.nanoTime();
    while (begunAt < killed || acknowledgedAt < begunAt) {
      Thread.sleep(1);
    }
    System.out.printf("failover %.3f%n", (acknowledgedAt - killed) / 1e9);
    System.exit(0);
  }

  private static void write(KuduClient client, KuduTable table) {
    KuduSession session = client.newSession();
    session.setFlushMode(SessionConfiguration.FlushMode.AUTO_FLUSH_SYNC);
    long key = System.currentTimeMillis() * 1_000_000L;
    try {
      while (true) {
        Insert insert = table.newInsert();
        insert.getRow().addLong("key", key++);
        insert.getRow().addInt("int_val", 0);
        begunAt = System.nanoTime();
        OperationResponse response = session.apply(insert);
        if (response.hasRowError()) {
          throw new IllegalStateException(response.getRowError().toString());
        }
        acknowledgedAt = System.nanoTime();
      }
    } catch (Exception error) {
      error.printStackTrace();
      System.exit(1);
    }
  }
}
