package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxResponse is how much of a response is read with its headers, in bytes.
const maxResponse = 1 << 20

// newTransport makes connections that serve one request each, never by a proxy, and trust any certificate: a probe asks whether the
// container answers, not who it is.
func newTransport() http.RoundTripper {
	secure := &http.Transport{
		DialContext:        dial,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives:  true,
		DisableCompression: true, // no Accept-Encoding
		ForceAttemptHTTP2:  true,
		// The container decides how much it sends; these are allocated in full.
		MaxResponseHeaderBytes: maxResponse,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 64 << 10, MaxDecoderHeaderTableSize: 4 << 10},
	}
	return byScheme{"http": plain{}, "https": secure}
}

type byScheme map[string]http.RoundTripper

func (s byScheme) RoundTrip(req *http.Request) (*http.Response, error) {
	if t := s[req.URL.Scheme]; t != nil {
		return t.RoundTrip(req)
	}
	return nil, errors.New("want scheme http or https")
}

// plain sends each request over a new connection, from the caller's goroutine alone. http.Transport starts three more for each
// connection; on an idle node most of a probe's time goes into waking them.
type plain struct{}

func (plain) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	address := req.URL.Host
	if req.URL.Port() == "" { // a redirect may leave it out
		address = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	buffer := buffers.Get().(*bufio.ReadWriter)
	end := sync.OnceValue(func() error { buffers.Put(buffer); stop(); return conn.Close() })
	resp, err := exchange(conn, buffer, req)
	if err != nil {
		end()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	resp.Body = closing{resp.Body, end}
	return resp, nil
}

// buffers are those of connections that have ended.
var buffers = sync.Pool{New: func() any { return bufio.NewReadWriter(bufio.NewReader(nil), bufio.NewWriter(nil)) }}

// exchange sends req and reads the head of its response; informational ones before it are passed over.
func exchange(conn net.Conn, buffer *bufio.ReadWriter, req *http.Request) (*http.Response, error) {
	buffer.Reader.Reset(io.LimitReader(conn, maxResponse))
	buffer.Writer.Reset(conn)
	req = req.Clone(req.Context()) // a RoundTripper must not change its request
	req.Close = true
	if err := req.Write(buffer.Writer); err != nil {
		return nil, err
	}
	if err := buffer.Flush(); err != nil {
		return nil, err
	}
	for {
		resp, err := http.ReadResponse(buffer.Reader, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
}

// closing is a response's body with whose end the connection ends.
type closing struct {
	io.Reader
	end func() error
}

func (c closing) Close() error { return c.end() }
