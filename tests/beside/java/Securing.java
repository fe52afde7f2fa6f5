import java.security.KeyPairGenerator;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/** Encrypted messages, with keys that exist or not. */
class Securing extends Checks {
  static class Keys implements CryptoKeyReader {
    final Map<String, byte[][]> pairs = new HashMap<>();
    Keys(String... names) throws Exception {
      var generator = KeyPairGenerator.getInstance("RSA");
      generator.initialize(2048);
      for (String each : names) {
        var pair = generator.generateKeyPair();
        pairs.put(each, new byte[][] {pem("PUBLIC", pair.getPublic().getEncoded()), pem("PRIVATE", pair.getPrivate().getEncoded())});
      }
    }
    static byte[] pem(String kind, byte[] key) {
      return ("-----BEGIN " + kind + " KEY-----\n" + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(key) + "\n-----END " + kind + " KEY-----\n").getBytes();
    }
    EncryptionKeyInfo key(String name, int which) {
      if (!pairs.containsKey(name)) throw new IllegalStateException("no key " + name);
      return new EncryptionKeyInfo(pairs.get(name)[which], Map.of("version", "1"));
    }
    @Override public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) { return key(name, 0); }
    @Override public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) { return key(name, 1); }
  }

  static ProducerBuilder<byte[]> encrypted(String topic, Keys keys) { return unbatched(topic).addEncryptionKey("k").cryptoKeyReader(keys); }

  static void add() {
    for (boolean batching : List.of(true, false))
      for (var compression : List.of(CompressionType.NONE, CompressionType.LZ4))
        checks.put("encryption/round-trip-" + batching + "-" + compression, s -> {
          var keys = new Keys("k", "l");
          var c = consumer(s.topic).cryptoKeyReader(keys).subscribe();
          var p = encrypted(s.topic, keys).addEncryptionKey("l").enableBatching(batching).compressionType(compression).create();
          send(p, numbered(0, 3));
          var m = next(c);
          s.is("first", m);
          s.is("keys", new TreeSet<>(m.getEncryptionCtx().get().getKeys().keySet()));
          s.is("rest", received(c, 2));
        });
    checks.put("encryption/chunked", s -> {
      var keys = new Keys("k");
      var c = consumer(s.topic).cryptoKeyReader(keys).subscribe();
      encrypted(s.topic, keys).enableChunking(true).chunkMaxMessageSize(200).create().send("x".repeat(500).getBytes());
      s.is("size", next(c).getData().length);
    });
    for (var action : ConsumerCryptoFailureAction.values())
      for (boolean batching : List.of(true, false))
        checks.put("encryption/no-key-" + action + "-" + batching, s -> {
          var c = consumer(s.topic).cryptoFailureAction(action).subscribe();
          var p = encrypted(s.topic, new Keys("k")).enableBatching(batching).batchingMaxPublishDelay(1, TimeUnit.MINUTES).create();
          send(p, numbered(0, 2));
          var m = c.receive(SILENCE, TimeUnit.MILLISECONDS);
          s.is("got", m != null);
          if (m != null) {
            s.is("plain", text(m).equals("m0"));
            var context = m.getEncryptionCtx().get();
            s.is("context", context.getKeys().keySet() + " " + context.getAlgorithm() + " " + context.getBatchSize() + " " + context.getCompressionType());
            c.acknowledge(m);
          }
          int left = batching ? 0 : 1;
          s.is("backlog", action == ConsumerCryptoFailureAction.FAIL ? backlog(s.topic) : until(() -> backlog(s.topic) <= left));
          s.is("connected", c.isConnected());
        });
    checks.put("encryption/wrong-key", s -> {
      var c = consumer(s.topic).cryptoKeyReader(new Keys("k")).cryptoFailureAction(ConsumerCryptoFailureAction.DISCARD).subscribe();
      encrypted(s.topic, new Keys("k")).create().send("x".getBytes());
      unbatched(s.topic).create().send("plain".getBytes());
      s.is("got", next(c));
    });
    checks.put("encryption/later-key", s -> {
      var keys = new Keys("k");
      try (var c = consumer(s.topic).cryptoKeyReader(new Keys()).subscribe()) {
        encrypted(s.topic, keys).create().send("x".getBytes());
        s.is("without", none(c));
      }
      s.is("with", next(consumer(s.topic).cryptoKeyReader(keys).subscribe()));
    });
    checks.put("encryption/producer-fails", s -> s.gets("producer", () -> {
      try { return encrypted(s.topic, new Keys()).create(); } catch (PulsarClientException e) { return e.getClass().getSimpleName(); }
    }));
    checks.put("encryption/producer-sends", s -> {
      var c = consumer(s.topic).subscribe();
      s.does("send", () -> encrypted(s.topic, new Keys()).cryptoFailureAction(ProducerCryptoFailureAction.SEND).create().send("x".getBytes()));
      s.is("got", c.receive(SILENCE, TimeUnit.MILLISECONDS));
    });
    checks.put("encryption/reader", s -> {
      var keys = new Keys("k");
      encrypted(s.topic, keys).create().send("x".getBytes());
      s.is("with", read(client().newReader().topic(s.topic).startMessageId(MessageId.earliest).cryptoKeyReader(keys).create(), 1));
      var without = client().newReader().topic(s.topic).startMessageId(MessageId.earliest).create();
      s.is("without", without.readNext(SILENCE, TimeUnit.MILLISECONDS));
    });
    checks.put("encryption/table-view", s -> {
      var keys = new Keys("k");
      encrypted(s.topic, keys).create().newMessage().key("a").value("x".getBytes()).send();
      s.is("value", client().newTableView().topic(s.topic).cryptoKeyReader(keys).create().get("a"));
    });
    checks.put("encryption/required", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      var before = unbatched(topic).create();
      admin.namespaces().setEncryptionRequiredStatus(ns, true);
      s.is("set", admin.namespaces().getEncryptionRequiredStatus(ns));
      s.gets("plain", () -> unbatched(topic + "2").create());
      s.gets("encrypted", () -> encrypted(topic + "2", new Keys("k")).create().isConnected());
      s.gets("sent", () -> at(encrypted(topic + "2", new Keys("k")).create().send("x".getBytes())));
    });
  }
}
