import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.stream.*;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.schema.*;
import org.apache.pulsar.common.policies.data.SchemaCompatibilityStrategy;
import org.apache.pulsar.common.protocol.schema.PostSchemaPayload;
import org.apache.pulsar.common.schema.*;

/** Schemas: their evolution under each strategy, AUTO_CONSUME and AUTO_PRODUCE, key and value, and refusals. */
class Schemas extends Checks {
  public static class Person { public String name; public int age; }
  public static class Animal { public String name; public double weight; public List<String> tags; }

  static final String A = "{\"name\":\"a\",\"type\":\"string\"}", INT = "{\"name\":\"a\",\"type\":\"int\"}", LONG = "{\"name\":\"a\",\"type\":\"long\"}";
  static final String OPTIONAL = "{\"name\":\"b\",\"type\":[\"null\",\"string\"],\"default\":null}", REQUIRED = "{\"name\":\"b\",\"type\":\"string\"}";

  static SchemaInfo info(SchemaType type, String... fields) {
    String text = "{\"type\":\"record\",\"name\":\"R\",\"fields\":[" + String.join(",", fields) + "]}";
    return SchemaInfo.builder().name("R").type(type).schema(text.getBytes(StandardCharsets.UTF_8)).properties(Map.of()).build();
  }

  static Schema<GenericRecord> generic(SchemaType type, String... fields) { return Schema.generic(info(type, fields)); }

  /** Whether a producer and a consumer with a schema get onto a topic. */
  static String tried(String topic, SchemaInfo schema) {
    String found = "";
    try (var p = client().newProducer(Schema.generic(schema)).topic(topic).create()) { found += "producer"; } catch (Exception e) { found += e.getClass().getSimpleName(); }
    return found;
  }

  static void add() {
    evolution();
    refusals();
    types();
    automatic();
    keyValues();
    registry();
  }

  static void evolution() {
    // Each: what is there, one after the other, and what comes.
    Map<String, String[][]> changes = new LinkedHashMap<>();
    changes.put("optional added", new String[][] {{A}, {A, OPTIONAL}});
    changes.put("required added", new String[][] {{A}, {A, REQUIRED}});
    changes.put("optional removed", new String[][] {{A, OPTIONAL}, {A}});
    changes.put("required removed", new String[][] {{A, REQUIRED}, {A}});
    changes.put("promoted", new String[][] {{INT}, {LONG}});
    changes.put("demoted", new String[][] {{LONG}, {INT}});
    changes.put("other type", new String[][] {{A}, {INT}});
    changes.put("back", new String[][] {{A}, {A, OPTIONAL}, {A}});
    changes.put("third", new String[][] {{A, REQUIRED}, {A, OPTIONAL}, {A}});
    changes.put("third added", new String[][] {{A}, {A, OPTIONAL}, {A, REQUIRED}});
    for (var strategy : SchemaCompatibilityStrategy.values())
      if (strategy != SchemaCompatibilityStrategy.UNDEFINED)
        for (var type : List.of(SchemaType.AVRO, SchemaType.JSON))
          checks.put("evolution/" + strategy + "-" + type, s -> {
            String ns = s.namespace();
            admin.namespaces().setSchemaCompatibilityStrategy(ns, strategy);
            int number = 0;
            for (var change : changes.entrySet()) {
              String topic = "persistent://" + ns + "/t" + number++;
              var found = new ArrayList<String>();
              for (String[] fields : change.getValue()) found.add(tried(topic, info(type, fields)));
              s.is(change.getKey(), found + " " + admin.schemas().getAllSchemas(topic).size());
            }
          });
    for (var strategy : SchemaCompatibilityStrategy.values())
      if (strategy != SchemaCompatibilityStrategy.UNDEFINED)
        checks.put("evolution-consumer/" + strategy, s -> {
          String ns = s.namespace();
          admin.namespaces().setSchemaCompatibilityStrategy(ns, strategy);
          int number = 0;
          for (var change : changes.entrySet()) {
            String topic = "persistent://" + ns + "/t" + number++;
            String[][] all = change.getValue();
            for (int i = 0; i < all.length - 1; i++) tried(topic, info(SchemaType.AVRO, all[i]));
            s.gets(change.getKey(), () -> {
              try (var c = client().newConsumer(generic(SchemaType.AVRO, all[all.length - 1])).topic(topic).subscriptionName("s").subscribe()) { return "consumer"; }
              catch (PulsarClientException e) { return e.getClass().getSimpleName(); }
            });
          }
        });
    checks.put("evolution/default-strategy", s -> {
      String ns = s.namespace();
      s.is("strategy", admin.namespaces().getSchemaCompatibilityStrategy(ns));
      String topic = "persistent://" + ns + "/t";
      s.is("found", tried(topic, info(SchemaType.AVRO, A)) + tried(topic, info(SchemaType.AVRO, A, REQUIRED)) + tried(topic, info(SchemaType.AVRO, A, OPTIONAL)));
    });
    checks.put("evolution/read-both", s -> {
      var c = client().newConsumer(generic(SchemaType.AVRO, A, OPTIONAL)).topic(s.topic).subscriptionName("s").subscribe();
      var any = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("any").subscribe();
      for (var schema : List.of((GenericSchema<GenericRecord>) generic(SchemaType.AVRO, A, OPTIONAL), (GenericSchema<GenericRecord>) generic(SchemaType.AVRO, A))) {
        var builder = schema.newRecordBuilder().set("a", "x");
        client().newProducer(schema).topic(s.topic).create().send(builder.build());
      }
      for (int i = 0; i < 2; i++) {
        var m = next(c);
        s.is("value", m.getValue().getField("a") + " " + Arrays.toString(m.getSchemaVersion()));
        var n = next(any);
        s.is("any", n.getValue().getFields().stream().map(Field::getName).toList() + " " + n.getValue().getSchemaType());
      }
    });
    checks.put("evolution/types-mixed", s -> {
      client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).create();
      s.gets("json", () -> client().newProducer(Schema.JSON(Person.class)).topic(s.topic).create());
      s.gets("string", () -> client().newProducer(Schema.STRING).topic(s.topic).create());
      s.gets("consumer string", () -> client().newConsumer(Schema.STRING).topic(s.topic).subscriptionName("s").subscribe());
      s.gets("bytes", () -> client().newProducer(Schema.BYTES).topic(s.topic).create().isConnected());
      s.gets("consumer bytes", () -> consumer(s.topic).subscribe().isConnected());
      s.gets("other class", () -> client().newProducer(Schema.AVRO(Animal.class)).topic(s.topic).create());
    });
  }

  static void refusals() {
    checks.put("schema/incompatible", s -> {
      client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).create();
      s.gets("producer", () -> client().newProducer(Schema.AVRO(Animal.class)).topic(s.topic).create());
      s.gets("consumer", () -> client().newConsumer(Schema.AVRO(Animal.class)).topic(s.topic).subscriptionName("s").subscribe());
      s.gets("reader", () -> client().newReader(Schema.AVRO(Animal.class)).topic(s.topic).startMessageId(MessageId.earliest).create());
    });
    checks.put("schema/auto-update-off", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      client().newProducer(generic(SchemaType.AVRO, A)).topic(topic).create();
      admin.namespaces().setIsAllowAutoUpdateSchema(ns, false);
      s.gets("producer", () -> client().newProducer(generic(SchemaType.AVRO, A, OPTIONAL)).topic(topic).create());
      s.gets("consumer", () -> client().newConsumer(generic(SchemaType.AVRO, A, OPTIONAL)).topic(topic).subscriptionName("s").subscribe());
      s.gets("known", () -> client().newProducer(generic(SchemaType.AVRO, A)).topic(topic).create().isConnected());
      s.gets("new topic", () -> client().newProducer(generic(SchemaType.AVRO, A)).topic(topic + "2").create().isConnected());
      s.does("admin", () -> admin.schemas().createSchema(topic, info(SchemaType.AVRO, A, OPTIONAL)));
      s.gets("then", () -> client().newProducer(generic(SchemaType.AVRO, A, OPTIONAL)).topic(topic).create().isConnected());
    });
    checks.put("schema/validation-enforced", s -> {
      String ns = s.namespace(), topic = "persistent://" + ns + "/t";
      admin.namespaces().setSchemaValidationEnforced(ns, true);
      s.gets("no schema yet", () -> { try (var p = client().newProducer().topic(topic).create()) { return p.isConnected(); } });
      client().newProducer(Schema.STRING).topic(topic).create();
      s.gets("producer", () -> client().newProducer().topic(topic).create());
      s.gets("consumer", () -> consumer(topic).subscribe().isConnected());
      s.gets("auto", () -> client().newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create().isConnected());
    });
    checks.put("schema/consumer-first", s -> {
      var c = client().newConsumer(Schema.AVRO(Person.class)).topic(s.topic).subscriptionName("s").subscribe();
      s.is("registered", admin.schemas().getAllSchemas(s.topic).size());
      s.gets("other", () -> client().newProducer(Schema.AVRO(Animal.class)).topic(s.topic).create());
      s.gets("same", () -> client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).create().isConnected());
    });
    checks.put("schema/consumer-on-data", s -> {
      send(s.topic, 1);
      s.gets("consumer", () -> client().newConsumer(Schema.AVRO(Person.class)).topic(s.topic).subscriptionName("s").subscribe().isConnected());
      s.gets("producer", () -> client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).create().isConnected());
      s.is("schemas", admin.schemas().getAllSchemas(s.topic).size());
    });
    checks.put("schema/undecodable", s -> {
      var c = client().newConsumer(Schema.AVRO(Person.class)).topic(s.topic).subscriptionName("s").subscribe();
      unbatched(s.topic).create().send(new byte[] {1, 2, 3});
      var m = next(c);
      s.gets("value", () -> { try { return m.getValue(); } catch (RuntimeException e) { return e.getClass().getSimpleName(); } });
    });
    checks.put("schema/bad-avro", s -> {
      s.gets("producer", () -> client().newProducer(Schema.generic(SchemaInfo.builder().name("x").type(SchemaType.AVRO).schema("nonsense".getBytes()).properties(Map.of()).build())).topic(s.topic).create());
      s.does("admin", () -> admin.schemas().createSchema(s.topic, new PostSchemaPayload("AVRO", "nonsense", Map.of())));
      s.does("admin json", () -> admin.schemas().createSchema(s.topic, new PostSchemaPayload("JSON", "{}", Map.of())));
      s.does("admin type", () -> admin.schemas().createSchema(s.topic, new PostSchemaPayload("NONE_SUCH", "{}", Map.of())));
    });
    checks.put("schema/multi-schema", s -> {
      var p = client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).create();
      s.does("other", () -> p.newMessage(Schema.STRING).value("x").send());
      var q = client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).enableMultiSchema(false).create();
      s.does("off", () -> q.newMessage(Schema.STRING).value("x").send());
      var c = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic + "2").subscriptionName("s").subscribe();
      var r = client().newProducer().topic(s.topic + "2").create();
      s.does("from bytes", () -> r.newMessage(Schema.JSON(Person.class)).value(new Person()).send());
      s.is("got", next(c).getValue().getSchemaType());
    });
    checks.put("schema/null-fields", s -> {
      var c = client().newConsumer(Schema.AVRO(Person.class)).topic(s.topic).subscriptionName("s").subscribe();
      client().newProducer(Schema.AVRO(Person.class)).topic(s.topic).create().send(new Person());
      s.is("name", next(c).getValue().name);
      s.gets("always not null", () -> client().newProducer(Schema.AVRO(SchemaDefinition.<Person>builder().withPojo(Person.class).withAlwaysAllowNull(false).build())).topic(s.topic).create().isConnected());
    });
  }

  static <T> void roundTrip(Seen s, String name, Schema<T> schema, T value) {
    s.gets(name, () -> {
      String topic = s.topic + name;
      var c = client().newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
      client().newProducer(schema).topic(topic).create().send(value);
      var any = client().newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("any").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
      var found = next(any).getValue();
      return shown(next(c).getValue()) + " " + found.getSchemaType() + " " + shown(found.getNativeObject()) + " " + admin.schemas().getSchemaInfo(topic).getType();
    });
  }

  static void types() {
    checks.put("schema/primitives", s -> {
      roundTrip(s, "STRING", Schema.STRING, "x");
      roundTrip(s, "INT8", Schema.INT8, (byte) 1);
      roundTrip(s, "INT16", Schema.INT16, (short) 2);
      roundTrip(s, "INT32", Schema.INT32, 3);
      roundTrip(s, "INT64", Schema.INT64, 4L);
      roundTrip(s, "FLOAT", Schema.FLOAT, 1.5f);
      roundTrip(s, "DOUBLE", Schema.DOUBLE, 2.5);
      roundTrip(s, "BOOL", Schema.BOOL, true);
      roundTrip(s, "INSTANT", Schema.INSTANT, java.time.Instant.ofEpochSecond(1));
      roundTrip(s, "LOCAL_DATE", Schema.LOCAL_DATE, java.time.LocalDate.ofEpochDay(1));
      roundTrip(s, "LOCAL_TIME", Schema.LOCAL_TIME, java.time.LocalTime.of(1, 2));
      roundTrip(s, "LOCAL_DATE_TIME", Schema.LOCAL_DATE_TIME, java.time.LocalDateTime.of(2020, 1, 1, 1, 1));
      roundTrip(s, "TIMESTAMP", Schema.TIMESTAMP, new java.sql.Timestamp(1000));
    });
    checks.put("schema/primitives-mixed", s -> {
      client().newProducer(Schema.INT32).topic(s.topic).create();
      s.gets("INT64", () -> client().newProducer(Schema.INT64).topic(s.topic).create());
      s.gets("STRING", () -> client().newConsumer(Schema.STRING).topic(s.topic).subscriptionName("s").subscribe());
      s.gets("same", () -> client().newProducer(Schema.INT32).topic(s.topic).create().isConnected());
    });
    checks.put("schema/protobuf", s -> {
      var one = Schema.PROTOBUF(com.google.protobuf.Timestamp.class);
      var c = client().newConsumer(one).topic(s.topic).subscriptionName("s").subscribe();
      client().newProducer(one).topic(s.topic).create().send(com.google.protobuf.Timestamp.newBuilder().setSeconds(7).build());
      s.is("value", next(c).getValue().getSeconds());
      s.is("type", admin.schemas().getSchemaInfo(s.topic).getType());
      s.gets("other", () -> client().newProducer(Schema.PROTOBUF(com.google.protobuf.StringValue.class)).topic(s.topic).create());
    });
    for (var strategy : SchemaCompatibilityStrategy.values())
      if (strategy != SchemaCompatibilityStrategy.UNDEFINED)
        checks.put("schema/protobuf-native-" + strategy, s -> {
          String ns = s.namespace(), topic = "persistent://" + ns + "/t";
          admin.namespaces().setSchemaCompatibilityStrategy(ns, strategy);
          var one = Schema.PROTOBUF_NATIVE(com.google.protobuf.Timestamp.class);
          var c = client().newConsumer(one).topic(topic).subscriptionName("s").subscribe();
          var any = client().newConsumer(Schema.AUTO_CONSUME()).topic(topic).subscriptionName("any").subscribe();
          client().newProducer(one).topic(topic).create().send(com.google.protobuf.Timestamp.newBuilder().setSeconds(7).build());
          s.is("value", next(c).getValue().getSeconds() + " " + next(any).getValue().getField("seconds"));
          s.gets("other root", () -> client().newProducer(Schema.PROTOBUF_NATIVE(com.google.protobuf.Duration.class)).topic(topic).create().isConnected());
          s.gets("other consumer", () -> client().newConsumer(Schema.PROTOBUF_NATIVE(com.google.protobuf.StringValue.class)).topic(topic).subscriptionName("t").subscribe().isConnected());
        });
    checks.put("schema/native-avro", s -> {
      var avro = new org.apache.avro.Schema.Parser().parse("{\"type\":\"record\",\"name\":\"R\",\"fields\":[" + A + "]}");
      var p = client().newProducer(Schema.NATIVE_AVRO(avro)).topic(s.topic).create();
      s.is("type", admin.schemas().getSchemaInfo(s.topic).getType());
      var c = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("s").subscribe();
      p.send(new byte[] {2, 'x'});
      s.is("value", next(c).getValue().getField("a"));
    });
    checks.put("schema/json-and-avro-classes", s -> {
      for (Schema<Animal> schema : List.of(Schema.JSON(Animal.class), Schema.AVRO(Animal.class))) {
        String topic = s.topic + schema.getSchemaInfo().getType();
        var c = client().newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
        Animal animal = new Animal();
        animal.name = "Bo";
        animal.weight = 2.5;
        animal.tags = List.of("a", "b");
        client().newProducer(schema).topic(topic).create().send(animal);
        var got = next(c).getValue();
        s.is(schema.getSchemaInfo().getType() + "", got.name + got.weight + got.tags);
      }
    });
  }

  static void automatic() {
    checks.put("auto/produce", s -> {
      s.gets("no schema", () -> at(client().newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(s.topic + "none").create().send("x".getBytes())));
      client().newProducer(generic(SchemaType.AVRO, A)).topic(s.topic).create();
      var c = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("s").subscribe();
      var p = client().newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(s.topic).create();
      p.send(new byte[] {2, 'x'});
      s.is("good", next(c).getValue().getField("a"));
      s.gets("bad", () -> { try { return p.send(new byte[] {9}); } catch (Exception e) { return e.getClass().getSimpleName(); } });
      s.gets("with schema", () -> client().newProducer(Schema.AUTO_PRODUCE_BYTES(generic(SchemaType.AVRO, A))).topic(s.topic).create().isConnected());
    });
    checks.put("auto/consume", s -> {
      s.gets("no schema", () -> client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("s").subscribe().isConnected());
      var c = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic + "2").subscriptionName("s").subscribe();
      client().newProducer(Schema.JSON(Person.class)).topic(s.topic + "2").create().send(new Person());
      var m = next(c);
      s.is("fields", m.getValue().getFields().stream().map(Field::getName).toList() + " " + m.getValue().getSchemaType() + " " + Arrays.toString(m.getSchemaVersion()));
      s.is("reader", m.getReaderSchema().isPresent());
    });
    checks.put("auto/consume-bytes", s -> {
      var c = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("s").subscribe();
      unbatched(s.topic).create().send("x".getBytes());
      var m = next(c);
      s.gets("value", () -> m.getValue().getSchemaType() + " " + shown(m.getValue().getNativeObject()));
    });
    checks.put("auto/consume-evolves", s -> {
      var c = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("s").subscribe();
      String ns = "public/default";
      var one = (GenericSchema<GenericRecord>) generic(SchemaType.JSON, A);
      var two = (GenericSchema<GenericRecord>) generic(SchemaType.JSON, A, OPTIONAL);
      client().newProducer(one).topic(s.topic).create().send(one.newRecordBuilder().set("a", "x").build());
      client().newProducer(two).topic(s.topic).create().send(two.newRecordBuilder().set("a", "y").set("b", "z").build());
      for (int i = 0; i < 2; i++) { var m = next(c); s.is("got", m.getValue().getFields().stream().map(Field::getName).toList() + " " + m.getValue().getField("a")); }
    });
  }

  static void keyValues() {
    for (var encoding : KeyValueEncodingType.values())
      checks.put("key-value/" + encoding, s -> {
        var schema = Schema.KeyValue(Schema.STRING, Schema.AVRO(Person.class), encoding);
        var c = client().newConsumer(schema).topic(s.topic).subscriptionName("s").subscribe();
        var any = client().newConsumer(Schema.AUTO_CONSUME()).topic(s.topic).subscriptionName("any").subscribe();
        Person person = new Person();
        person.name = "Ada";
        client().newProducer(schema).topic(s.topic).create().send(new KeyValue<>("k", person));
        var m = next(c);
        s.is("value", m.getValue().getKey() + m.getValue().getValue().name + " " + m.hasKey());
        s.is("any", next(any).getValue().getSchemaType());
        s.is("info", admin.schemas().getSchemaInfo(s.topic).getType() + " " + new TreeMap<>(admin.schemas().getSchemaInfo(s.topic).getProperties()).keySet());
      });
    for (var strategy : SchemaCompatibilityStrategy.values())
      if (strategy != SchemaCompatibilityStrategy.UNDEFINED)
        checks.put("key-value/evolution-" + strategy, s -> {
          String ns = s.namespace(), topic = "persistent://" + ns + "/t";
          admin.namespaces().setSchemaCompatibilityStrategy(ns, strategy);
          var base = generic(SchemaType.AVRO, A);
          client().newProducer(Schema.KeyValue(base, base)).topic(topic).create();
          s.gets("value", () -> client().newProducer(Schema.KeyValue(base, generic(SchemaType.AVRO, A, OPTIONAL))).topic(topic).create().isConnected());
          s.gets("key", () -> client().newProducer(Schema.KeyValue(generic(SchemaType.AVRO, A, REQUIRED), base)).topic(topic).create().isConnected());
          s.gets("encoding", () -> client().newProducer(Schema.KeyValue(base, base, KeyValueEncodingType.SEPARATED)).topic(topic).create().isConnected());
          s.gets("other type", () -> client().newProducer(Schema.KeyValue(Schema.STRING, base)).topic(topic).create().isConnected());
          s.gets("plain", () -> client().newProducer(base).topic(topic).create().isConnected());
        });
    checks.put("key-value/nulls", s -> {
      var schema = Schema.KeyValue(Schema.STRING, Schema.STRING, KeyValueEncodingType.SEPARATED);
      var c = client().newConsumer(schema).topic(s.topic).subscriptionName("s").subscribe();
      var p = client().newProducer(schema).topic(s.topic).create();
      s.does("value", () -> p.send(new KeyValue<>("k", null)));
      s.does("key", () -> p.send(new KeyValue<>(null, "v")));
      for (int i = 0; i < 2; i++) { var m = c.receive(SILENCE, TimeUnit.MILLISECONDS); s.gets("got", () -> m == null ? null : m.getValue().getKey() + "=" + m.getValue().getValue()); }
      s.does("setter", () -> p.newMessage().key("x").value(new KeyValue<>("k", "v")).send());
    });
  }

  static void registry() {
    checks.put("registry/versions", s -> {
      s.gets("none", () -> admin.schemas().getSchemaInfo(s.topic));
      s.gets("none at all", () -> admin.schemas().getAllSchemas(s.topic).size());
      client().newProducer(generic(SchemaType.AVRO, A)).topic(s.topic).create();
      client().newProducer(generic(SchemaType.AVRO, A, OPTIONAL)).topic(s.topic).create();
      client().newProducer(generic(SchemaType.AVRO, A)).topic(s.topic).create();
      s.is("versions", admin.schemas().getAllSchemas(s.topic).size() + " " + admin.schemas().getSchemaInfoWithVersion(s.topic).getVersion());
      s.gets("of first", () -> admin.schemas().getVersionBySchema(s.topic, new PostSchemaPayload("AVRO", new String(info(SchemaType.AVRO, A).getSchema()), Map.of())));
      s.gets("first", () -> new String(admin.schemas().getSchemaInfo(s.topic, 0).getSchema()));
      s.gets("beyond", () -> admin.schemas().getSchemaInfo(s.topic, 9));
      s.gets("compatible", () -> { var found = admin.schemas().testCompatibility(s.topic, new PostSchemaPayload("AVRO", new String(info(SchemaType.AVRO, A, REQUIRED).getSchema()), Map.of())); return found.isCompatibility() + " " + found.getSchemaCompatibilityStrategy(); });
    });
    checks.put("registry/deleted", s -> {
      var p = client().newProducer(Schema.STRING).topic(s.topic).create();
      s.does("delete", () -> admin.schemas().deleteSchema(s.topic));
      s.gets("info", () -> admin.schemas().getSchemaInfo(s.topic).getType());
      s.does("send", () -> p.send("x"));
      s.gets("other", () -> client().newProducer(Schema.INT32).topic(s.topic).create().isConnected());
      s.gets("versions", () -> admin.schemas().getAllSchemas(s.topic).size());
      p.close();
      s.gets("after", () -> client().newProducer(Schema.INT32).topic(s.topic + "2").create().isConnected());
    });
    checks.put("registry/after-deleting-topic", s -> {
      client().newProducer(Schema.STRING).topic(s.topic).create().close();
      s.does("topic", () -> admin.topics().delete(s.topic));
      s.gets("info", () -> admin.schemas().getSchemaInfo(s.topic).getType());
      s.gets("other", () -> client().newProducer(Schema.INT32).topic(s.topic).create().isConnected());
    });
    checks.put("registry/partitions", s -> {
      admin.topics().createPartitionedTopic(s.topic, 2);
      client().newProducer(Schema.STRING).topic(s.topic).create();
      s.is("whole", admin.schemas().getSchemaInfo(s.topic).getType());
      s.gets("partition", () -> admin.schemas().getSchemaInfo(s.topic + "-partition-0").getType());
      s.gets("other", () -> client().newProducer(Schema.INT32).topic(s.topic).create());
    });
  }
}
