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

// maxResponse limits how much of a response is read, including its headers, in bytes.
const maxResponse = 1 << 20

// newTransport returns a transport with one connection per request. It never uses a proxy and accepts any certificate: a probe checks
// whether the container responds, not its identity.
func newTransport() http.RoundTripper {
	secure := &http.Transport{
		DialContext:        dial,
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives:  true,
		DisableCompression: true, // no Accept-Encoding
		ForceAttemptHTTP2:  true,
		// The container decides how much it sends; these buffers are allocated in full.
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

// plain sends each request over a new connection, using only the caller's goroutine. http.Transport starts three more goroutines per
// connection; on an idle node, waking them takes most of a probe's time.
type plain struct{}

func (plain) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	address := req.URL.Host
	if req.URL.Port() == "" { // a redirect may omit it
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

// buffers holds the buffers of closed connections for reuse.
var buffers = sync.Pool{New: func() any { return bufio.NewReadWriter(bufio.NewReader(nil), bufio.NewWriter(nil)) }}

// exchange sends req and reads the head of its response, skipping informational responses.
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

// closing is a response body; closing it ends the connection.
type closing struct {
	io.Reader
	end func() error
}

func (c closing) Close() error { return c.end() }
