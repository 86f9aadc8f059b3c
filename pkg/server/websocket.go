package server

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientportforward "k8s.io/client-go/tools/portforward"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	utilexec "k8s.io/utils/exec"
)

// statusTimeout is how long the client may take to receive the final status.
const statusTimeout = 10 * time.Second

// serveCommandV5 implements v5.channel.k8s.io, the WebSocket protocol that can signal the end of stdin and that kubectl prefers (KEP-4006). The
// streaming library ends at v4; upstream's kubelet translates v5 to SPDY itself.
func serveCommandV5(w http.ResponseWriter, r *http.Request, options *remotecommand.Options, idle time.Duration, run command) {
	channels := make([]wsstream.ChannelType, remotecommand.StreamResize+1)
	for channel, kind := range map[int]wsstream.ChannelType{
		remotecommand.StreamStdIn:  only(options.Stdin, wsstream.ReadChannel),
		remotecommand.StreamStdOut: only(options.Stdout, wsstream.WriteChannel),
		remotecommand.StreamStdErr: only(options.Stderr, wsstream.WriteChannel),
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: wsstream.ReadChannel,
	} {
		channels[channel] = kind
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
	})
	conn.SetIdleTimeout(idle)
	_, opened, err := conn.Open(w, r)
	if err != nil { // the library has answered the client
		klog.V(2).InfoS("Cannot upgrade to a WebSocket", "err", err)
		return
	}
	defer conn.Close()
	_, _ = opened[lowestWritable(options)].Write(nil) // the client waits for a first message

	resize := make(chan remotecommand.TerminalSize)
	go func() { // ends when the connection is closed or the command is done
		defer close(resize)
		for sizes := json.NewDecoder(opened[remotecommand.StreamResize]); ; {
			var size remotecommand.TerminalSize
			if sizes.Decode(&size) != nil {
				return
			}
			select {
			case resize <- size:
			case <-r.Context().Done():
				return
			}
		}
	}()
	err = run.start(r.Context(), options, streams{opened[remotecommand.StreamStdIn], opened[remotecommand.StreamStdOut], opened[remotecommand.StreamStdErr], resize})
	conn.SetWriteDeadline(statusTimeout)
	status, err := json.Marshal(exitStatus(run, err))
	if err == nil {
		_, _ = opened[remotecommand.StreamErr].Write(status)
	}
}

func only(wanted bool, kind wsstream.ChannelType) wsstream.ChannelType {
	if wanted {
		return kind
	}
	return wsstream.IgnoreChannel
}

func lowestWritable(options *remotecommand.Options) int {
	switch {
	case options.Stdout:
		return remotecommand.StreamStdOut
	case options.Stderr:
		return remotecommand.StreamStdErr
	}
	return remotecommand.StreamErr
}

// exitStatus is the result of a command in the form that clients expect on the error stream.
func exitStatus(run command, err error) metav1.Status {
	if err == nil {
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	if exit, ok := err.(utilexec.ExitError); ok && exit.Exited() {
		return metav1.Status{
			Status:  metav1.StatusFailure,
			Reason:  remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(exit.ExitStatus())}}},
		}
	}
	doing := "executing command in container"
	if run.attach {
		doing = "attaching to container"
	}
	klog.ErrorS(err, "A stream failed", "doing", doing)
	return metav1.Status{
		Status:  metav1.StatusFailure,
		Reason:  metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("Internal error occurred: error %s: %v", doing, err),
		Code:    http.StatusInternalServerError,
	}
}

// tunnelled accepts a WebSocket that carries SPDY (KEP-4006, port-forward) and returns a response and a request that the streaming library sees as a
// SPDY upgrade. It returns nil if the upgrade failed; the client then has its answer.
func tunnelled(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPortForwardV1},
		CheckOrigin:  func(*http.Request) bool { return true }, // the API server passes on the origins of its dashboards
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		klog.V(2).InfoS("Cannot upgrade to a WebSocket", "err", err)
		return nil, nil
	}
	if conn.Subprotocol() == "" {
		_ = conn.Close()
		return nil, nil
	}
	inner := r.Clone(r.Context())
	inner.Method = http.MethodPost
	for name := range inner.Header {
		if strings.HasPrefix(name, "Sec-Websocket-") {
			inner.Header.Del(name)
		}
	}
	inner.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	inner.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	inner.Header.Set(httpstream.HeaderProtocolVersion, portforward.ProtocolV1Name)
	return &tunnelWriter{conn: clientportforward.NewTunnelingConnection("server", conn), header: http.Header{}}, inner
}

// tunnelWriter is the response to a SPDY upgrade inside a tunnel. The negotiation took place outside, so its header is discarded.
type tunnelWriter struct {
	conn   net.Conn
	header http.Header
}

func (t *tunnelWriter) Header() http.Header         { return t.header }
func (t *tunnelWriter) WriteHeader(int)             {}
func (t *tunnelWriter) Write(p []byte) (int, error) { return io.Discard.Write(p) }

func (t *tunnelWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}
