import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class ShopTest {
  @RegisterExtension static final PulsarDouble broker = new PulsarDouble();

  @Test
  void aReminderComesAfterAWeek() throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl()).build();
        Consumer<String> mails =
            client.newConsumer(Schema.STRING).topic("mails").subscriptionName("sender")
                .subscriptionType(SubscriptionType.Shared).subscribe();
        Producer<String> orders = client.newProducer(Schema.STRING).topic("mails").create()) {
      orders.newMessage().value("rate your order").deliverAfter(7, TimeUnit.DAYS).send();
      broker.advance(Duration.ofDays(6));
      assertNull(mails.receive(200, TimeUnit.MILLISECONDS));
      broker.advance(Duration.ofDays(1));
      assertEquals("rate your order", mails.receive(10, TimeUnit.SECONDS).getValue());
    }
  }

  @Test
  void eachTestFindsAnEmptyBroker() {
    assertEquals("[]", broker.admin("GET", "/persistent/public/default", null));
  }

  /** As for a broker in a container, whose addresses are known: here those of the process. */
  @Test
  void aBrokerThatRunsElsewhere() {
    PulsarDouble elsewhere = new PulsarDouble(broker.serviceUrl(), broker.adminUrl());
    elsewhere.admin("PUT", "/persistent/public/default/orders", null);
    elsewhere.begin("a test");
    assertEquals("[]", elsewhere.admin("GET", "/persistent/public/default", null));
    assertEquals(broker.serviceUrl(), elsewhere.serviceUrl());
  }

  /** All tests have one address there. A client that an earlier test did not close gets nothing any more. */
  @Test
  void aClientLeftOverElsewhere() throws Exception {
    PulsarDouble elsewhere = new PulsarDouble(broker.serviceUrl(), broker.adminUrl());
    try (PulsarClient left = PulsarClient.builder().serviceUrl(elsewhere.serviceUrl()).build();
        Consumer<String> old = orders(left)) {
      elsewhere.begin("the next test");
      try (PulsarClient client = PulsarClient.builder().serviceUrl(elsewhere.serviceUrl()).build();
          Consumer<String> consumer = orders(client);
          Producer<String> producer = client.newProducer(Schema.STRING).topic("orders").create()) {
        for (int i = 0; i < 10; i++) {
          producer.send("order " + i);
          assertEquals("order " + i, consumer.receive(10, TimeUnit.SECONDS).getValue());
        }
        assertNull(old.receive(200, TimeUnit.MILLISECONDS));
      }
    }
  }

  private static Consumer<String> orders(PulsarClient client) throws Exception {
    return client.newConsumer(Schema.STRING).topic("orders").subscriptionName("shop")
        .subscriptionType(SubscriptionType.Shared).subscribe();
  }

  @Test
  void anOrderIsStoredAlthoughAWriteFails() throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl()).build();
        Producer<String> orders = client.newProducer(Schema.STRING).topic("orders").create()) {
      String fault = broker.call("POST", "/faults", "{\"action\": \"error\", \"command\": \"SEND\", \"topic\": \"orders\"}");
      orders.send("order 1"); // the client connects again and repeats it
      String id = fault.replaceAll(".*\"id\": ?(\\d+).*", "$1");
      assertTrue(broker.call("GET", "/faults/" + id, null).contains("\"hits\":1"), "the fault was not hit");
    }
  }
}
