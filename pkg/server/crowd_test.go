package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// pipeFrom is a connection from an address; ended says that it was closed.
type pipeFrom struct {
	net.Conn
	remote string
	ended  bool
}

func (p *pipeFrom) RemoteAddr() net.Addr { return stringAddr(p.remote) }
func (p *pipeFrom) Close() error         { p.ended = true; return nil }

type stringAddr string

func (a stringAddr) Network() string { return "tcp" }
func (a stringAddr) String() string  { return string(a) }

// TestCrowd: the oldest connection of the source with the most is closed, but none in authentication, and no authenticated one.
func TestCrowd(t *testing.T) {
	closed := map[string]int{}
	c := newCrowd(5, 3, func(limit string) { closed[limit]++ })
	join := func(remote string) (*pipeFrom, *visitor) {
		conn := &pipeFrom{remote: remote}
		return conn, visitorOf(c.join(t.Context(), conn))
	}
	asking, v := join("192.0.2.1:1")
	v.asking.Add(1)
	known, v := join("192.0.2.1:2")
	v.authenticated(&identity{Name: anonymousUser})
	if len(c.members) != 2 {
		t.Error("who is anonymous is known")
	}
	v.authenticated(&identity{Name: "reader"})
	var flood []*pipeFrom
	for i := range 4 {
		conn, _ := join(fmt.Sprint("192.0.2.1:", 3+i))
		flood = append(flood, conn)
	}
	other, _ := join("192.0.2.2:1")
	third, _ := join("192.0.2.3:1")
	fourth, _ := join("192.0.2.4:1") // one too many in total
	for i, test := range []struct {
		conn  *pipeFrom
		ended bool
	}{{asking, false}, {known, false}, {flood[0], true}, {flood[1], true}, {flood[2], true}, {flood[3], false}, {other, false}, {third, false}, {fourth, false}} {
		if test.conn.ended != test.ended {
			t.Errorf("connection %d of %s: ended %t, want %t", i, test.conn.remote, test.conn.ended, test.ended)
		}
	}
	if closed[limitStrangersOfSource] != 2 || closed[limitStrangers] != 1 {
		t.Errorf("counted are %v, want two of one address and one of all", closed)
	}
	for _, conn := range []*pipeFrom{asking, known, flood[3], other, third, fourth} {
		c.changed(conn, http.StateClosed)
	}
	if len(c.members)+len(c.sources) != 0 {
		t.Errorf("left: %v", c.sources)
	}
}

// TestIdleStrangers: connections without a credential are closed when there are too many; an authenticated one continues.
func TestIdleStrangers(t *testing.T) {
	r := newRig(t, nil)
	client := r.http(r.as("root"))
	if status, _ := r.do(client, "GET", "/pods", ""); status != http.StatusOK {
		t.Fatal(status)
	}
	var first net.Conn
	for i := range sourceStrangers + 1 {
		conn, err := net.Dial("tcp", r.server.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i == 0 {
			first = conn
		}
	}
	if _, err := io.Copy(io.Discard, first); err != nil && err != io.EOF { // ends when it is closed, or at the test's deadline
		t.Logf("the oldest ended with: %v", err)
	}
	if got := r.limited(limitStrangersOfSource); got < 1 {
		t.Errorf("%d closed connections are counted", got)
	}
	client.Transport.(bearer).next.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("want the connection that is there")
	}
	if status, _ := r.do(client, "GET", "/pods", ""); status != http.StatusOK {
		t.Errorf("who is known, on the connection that it had: %d", status)
	}
	if status, _ := r.do(r.http(r.as("token:good-token")), "GET", "/metrics", ""); status != http.StatusOK {
		t.Errorf("who comes new: %d", status)
	}
	another, err := tls.Dial("tcp", r.server.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatalf("another stranger: %v", err)
	}
	another.Close()
}
