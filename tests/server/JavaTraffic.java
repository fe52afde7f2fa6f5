import java.util.*;
import java.util.concurrent.*;
import org.apache.pulsar.client.api.*;

/**
 * A producer that sends numbers, and a consumer that acknowledges them, until a line comes from the input. Prints how many numbers
 * are stored and how many were received; at the end `ok`, if all were stored and received and are in the topic once and in order.
 * Arguments: the producer's service URL, the consumer's, the topic.
 */
public class JavaTraffic {
  static volatile boolean end;
  static volatile int sent;
  static volatile CompletableFuture<Void> last;
  static final Set<Integer> stored = ConcurrentHashMap.newKeySet(), received = ConcurrentHashMap.newKeySet();

  public static void main(String[] args) throws Exception {
    PulsarClient sender = newClient(args[0]), receiver = newClient(args[1]);
    Producer<Integer> producer = sender.newProducer(Schema.INT32).topic(args[2]).producerName("p").enableBatching(false)
        .sendTimeout(0, TimeUnit.SECONDS).blockIfQueueFull(true).create();
    Consumer<Integer> consumer = receiver.newConsumer(Schema.INT32).topic(args[2]).subscriptionName("s").subscribe();
    Thread sending = new Thread(() -> send(producer)), receiving = new Thread(() -> receive(consumer, sending));
    sending.start();
    receiving.start();
    Thread reading = new Thread(() -> { if (new Scanner(System.in).hasNextLine()) end = true; else System.exit(1); });
    reading.setDaemon(true);
    reading.start();
    while (!end) {
      System.out.println("counts " + stored.size() + " " + received.size());
      Thread.sleep(100);
    }
    sending.join();
    receiving.join();
    last.join();
    List<Integer> found = new ArrayList<>();
    Reader<Integer> reader = receiver.newReader(Schema.INT32).topic(args[2]).startMessageId(MessageId.earliest).create();
    while (reader.hasMessageAvailable()) found.add(reader.readNext().getValue());
    boolean whole = stored.size() == sent && received.size() == sent && found.size() == sent;
    for (int i = 0; whole && i < sent; i++) whole = found.get(i) == i;
    System.out.println(whole ? "ok" : "FAIL sent " + sent + ", stored " + stored.size() + ", received " + received.size() + ": " + found);
    sender.close();
    receiver.close();
    System.exit(0);
  }

  static PulsarClient newClient(String url) throws Exception {
    return PulsarClient.builder().serviceUrl(url).operationTimeout(2, TimeUnit.MINUTES).build();
  }

  static void send(Producer<Integer> producer) {
    try {
      for (; !end; sent++) {
        int number = sent;
        last = producer.sendAsync(number).thenRun(() -> stored.add(number));
        Thread.sleep(50);
      }
    } catch (Exception error) { throw new IllegalStateException(error); }
  }

  static void receive(Consumer<Integer> consumer, Thread sending) {
    try {
      while (sending.isAlive() || received.size() < sent) {
        Message<Integer> message = consumer.receive(1, TimeUnit.SECONDS);
        if (message == null) continue;
        received.add(message.getValue());
        consumer.acknowledgeAsync(message);
      }
    } catch (Exception error) { throw new IllegalStateException(error); }
  }
}
