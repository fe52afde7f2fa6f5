// Package pulsardouble starts a broker for the tests of an application that uses Apache Pulsar, with a clock that stands still until a
// test moves it. Copy this file; it needs Go's own library and nothing else.
package pulsardouble

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Broker is a test double. ServiceURL is where the clients of the test that runs connect, AdminURL where Pulsar's admin API is.
type Broker struct {
	ServiceURL string `json:"service_url"`
	AdminURL   string `json:"admin_url"`

	process *exec.Cmd
	stdin   io.Closer
	mapped  bool
}

// Start runs magnetar-double on free ports of this machine, or the command in the environment variable MAGNETAR_DOUBLE. Call it once, in
// TestMain, and Close at the end.
func Start() (*Broker, error) {
	program := os.Getenv("MAGNETAR_DOUBLE")
	if program == "" {
		program = "magnetar-double"
	}
	words := append(strings.Fields(program), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--ready-file", "-", "--end-with-stdin")
	process := exec.Command(words[0], words[1:]...)
	process.Stderr = os.Stderr
	// Its standard input ends with this process, however that ends, and it ends with its standard input.
	stdin, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		_ = process.Wait()
		return nil, fmt.Errorf("%s did not start: %w", program, err)
	}
	broker := &Broker{process: process, stdin: stdin}
	return broker, json.Unmarshal(line, broker)
}

// At is a broker that runs elsewhere, such as in a container: its addresses as they are here. They stay the same for all tests.
func At(serviceURL, adminURL string) *Broker {
	return &Broker{ServiceURL: serviceURL, AdminURL: adminURL, mapped: true}
}

// Close ends the process.
func (b *Broker) Close() error {
	if b.process == nil {
		return nil
	}
	_ = b.stdin.Close()
	return b.process.Wait()
}

// Begin makes the broker as after its start, for one test. ServiceURL is another one from then on.
func (b *Broker) Begin(t testing.TB) {
	t.Helper()
	if b.mapped {
		b.Call(t, "POST", "/tests", map[string]any{"name": t.Name(), "same_address": true}, nil)
		return
	}
	b.Call(t, "POST", "/tests", map[string]string{"name": t.Name()}, b)
}

// Advance moves the broker's clock on. It returns the time then.
func (b *Broker) Advance(t testing.TB, by time.Duration) time.Time {
	t.Helper()
	var clock struct {
		Now int64 `json:"now"`
	}
	b.Call(t, "POST", "/clock", map[string]int64{"advance": by.Milliseconds()}, &clock)
	return time.UnixMilli(clock.Now)
}

// Call calls the API of tests, which /magnetar/v1/openapi.json describes. The body and the answer are JSON; nil: there is none, or it does
// not matter. The test fails if the broker refuses the call.
func (b *Broker) Call(t testing.TB, method, path string, body, answer any) {
	t.Helper()
	b.send(t, method, "/magnetar/v1"+path, body, answer)
}

// Admin calls Pulsar's admin API, as Call does.
func (b *Broker) Admin(t testing.TB, method, path string, body, answer any) {
	t.Helper()
	b.send(t, method, "/admin/v2"+path, body, answer)
}

func (b *Broker) send(t testing.TB, method, path string, body, answer any) {
	t.Helper()
	var content []byte
	if body != nil {
		var err error
		if content, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequest(method, b.AdminURL+path, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s", method, path, response.Status, said)
	}
	if answer != nil {
		if err := json.Unmarshal(said, answer); err != nil {
			t.Fatal(err)
		}
	}
}
