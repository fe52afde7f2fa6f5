package pulsardouble

import (
	"context"
	"log"
	"os"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var broker *Broker

func TestMain(m *testing.M) {
	var err error
	if broker, err = Start(); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	_ = broker.Close()
	os.Exit(code)
}

func newClient(t *testing.T) pulsar.Client {
	broker.Begin(t)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: broker.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestAReminderComesAfterAWeek(t *testing.T) {
	client := newClient(t)
	mails, err := client.Subscribe(pulsar.ConsumerOptions{Topic: "mails", SubscriptionName: "sender", Type: pulsar.Shared})
	if err != nil {
		t.Fatal(err)
	}
	orders, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "mails"})
	if err != nil {
		t.Fatal(err)
	}
	reminder := &pulsar.ProducerMessage{Payload: []byte("rate your order"), DeliverAfter: 7 * 24 * time.Hour}
	if _, err := orders.Send(context.Background(), reminder); err != nil {
		t.Fatal(err)
	}
	broker.Advance(t, 6*24*time.Hour)
	select {
	case early := <-mails.Chan():
		t.Fatalf("%s came too early", early.Payload())
	case <-time.After(200 * time.Millisecond):
	}
	broker.Advance(t, 24*time.Hour)
	patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	message, err := mails.Receive(patience)
	if err != nil {
		t.Fatal(err)
	}
	if string(message.Payload()) != "rate your order" {
		t.Fatalf("got %q", message.Payload())
	}
}

func TestEachTestFindsAnEmptyBroker(t *testing.T) {
	newClient(t)
	var topics []string
	broker.Admin(t, "GET", "/persistent/public/default", nil, &topics)
	if len(topics) != 0 {
		t.Fatalf("found %v", topics)
	}
}

// As for a broker in a container, whose addresses are known: here those of the process.
func TestABrokerThatRunsElsewhere(t *testing.T) {
	broker.Begin(t)
	elsewhere := At(broker.ServiceURL, broker.AdminURL)
	elsewhere.Admin(t, "PUT", "/persistent/public/default/orders", nil, nil)
	elsewhere.Begin(t)
	var topics []string
	elsewhere.Admin(t, "GET", "/persistent/public/default", nil, &topics)
	if len(topics) != 0 || elsewhere.ServiceURL != broker.ServiceURL {
		t.Fatalf("found %v at %s", topics, elsewhere.ServiceURL)
	}
}

// All tests have one address there. A client that an earlier test did not close gets nothing any more.
func TestAClientLeftOverElsewhere(t *testing.T) {
	broker.Begin(t)
	elsewhere := At(broker.ServiceURL, broker.AdminURL)
	var consumers [2]pulsar.Consumer
	var clients [2]pulsar.Client
	for i := range consumers {
		elsewhere.Begin(t)
		var err error
		if clients[i], err = pulsar.NewClient(pulsar.ClientOptions{URL: elsewhere.ServiceURL}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(clients[i].Close)
		options := pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "shop", Type: pulsar.Shared}
		if consumers[i], err = clients[i].Subscribe(options); err != nil {
			t.Fatal(err)
		}
	}
	orders, err := clients[1].CreateProducer(pulsar.ProducerOptions{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 10; i++ {
		if _, err := orders.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("an order")}); err != nil {
			t.Fatal(err)
		}
		<-consumers[1].Chan()
	}
	if len(consumers[0].Chan()) != 0 {
		t.Fatal("the client of an earlier test got a message")
	}
}
