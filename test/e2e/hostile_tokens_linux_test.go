package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// statusOf requests a URL, with a bearer token unless it is "", and returns the answer's status and body.
func statusOf(c *http.Client, url, token string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, string(data), err
}

// sendTokens sends n different bad tokens to a kubelet's port from a host, and returns how many had each status; 0: no
// answer.
func sendTokens(from *outsider, url string, n int) map[int]int {
	const senders = 200 // more than may wait, fewer than the connections that one address may have
	flooder := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxConnsPerHost: senders, MaxIdleConnsPerHost: senders,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = within(from.Host, func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	defer flooder.CloseIdleConnections()
	var mu sync.Mutex
	var sent atomic.Int64
	var group sync.WaitGroup
	counts := map[int]int{}
	for range senders {
		group.Go(func() {
			for {
				i := sent.Add(1)
				if i > int64(n) {
					return
				}
				status, _, err := statusOf(flooder, url, fmt.Sprintf("bad-token-%d", i))
				if err != nil {
					status = 0
				}
				mu.Lock()
				counts[status]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return counts
}

// TestHostileTokens: a host outside the cluster sends bad tokens to a kubelet's port. Clients with good credentials are
// served, new ones too, and the node's Lease is renewed.
func TestHostileTokens(t *testing.T) {
	s := newSpace(t)
	near := cluster.Nodes[0]
	o := s.outsider(netip.MustParseAddr("172.30.0.96"))
	base := "https://" + net.JoinHostPort(near.Addr.String(), "10250")
	s.create(s.pod("web", near, "serve", "8080"))
	s.ready("web")
	reader, late := s.portClient(cluster.Control, s.account("get metrics", near.Name)), s.portClient(cluster.Control, s.account("get stats", near.Name))
	v := s.victims()
	v.ask("logs through the API server", nil, func() error {
		ctx, cancel := context.WithTimeout(v.ctx, 20*time.Second)
		defer cancel()
		_, err := client.CoreV1().Pods(s.name).GetLogs("web", &v1.PodLogOptions{}).DoRaw(ctx)
		return err
	})
	v.ask("metrics by a token", nil, func() error {
		status, _, err := statusOf(reader, base+"/metrics", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	v.ask("the Lease", nil, func() error {
		lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(v.ctx, near.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || time.Since(lease.Spec.RenewTime.Time) > 20*time.Second {
			return fmt.Errorf("it was renewed at %s", lease.Spec.RenewTime)
		}
		return nil
	})
	v.rounds(5)
	const tokens = 20_000
	ended := make(chan map[int]int, 1)
	begin := time.Now()
	go func() { ended <- sendTokens(o, base+"/pods", tokens) }()
	v.rounds(10)
	s.eventually(time.Minute, "a token that the kubelet has not had before", func(context.Context) error {
		status, _, err := statusOf(late, base+"/stats/summary", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	counts := <-ended
	t.Logf("%d bad tokens in %s; answers by status: %v", tokens, time.Since(begin).Round(time.Second), counts)
	v.rounds(10)
	v.unharmed()
	if counts[http.StatusUnauthorized] == 0 || counts[http.StatusTooManyRequests] == 0 || counts[http.StatusUnauthorized]+counts[http.StatusTooManyRequests] < tokens*9/10 {
		t.Errorf("answers by status: %v; want 401 and 429 for nearly all of %d", counts, tokens)
	}
	_, page, err := statusOf(reader, base+"/metrics", "")
	s.must(err)
	if !regexp.MustCompile(`(?m)^winkube_server_limited_total\{limit="new_tokens"\} [1-9]`).MatchString(page) {
		t.Error("the kubelet's metrics count no refused token")
	}
}
