package kubeclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/wake"
)

// PairConfig is the configuration of a Pair.
type PairConfig struct {
	Name   string // prefix of the files: NAME-current.pem links to NAME-<time>.pem with certificate and key
	Dir    string // --cert-dir
	Signer string // certificates.KubeAPIServerClientKubeletSignerName or KubeletServingSignerName
	// Template is the desired content of the certificate; nil: not known yet. It is called again after each Kick.
	Template func() *x509.CertificateRequest
	// Client is called for each request; expired means that the current certificate has expired.
	Client func(expired bool) (clientset.Interface, error)
	// Changed is called after each new certificate.
	Changed func()
	Clock   clock.WithTicker
}

// Pair is a certificate and its key. Before they expire, it gets replacements from the API server.
type Pair struct {
	cfg     PairConfig
	files   pairFiles
	current atomic.Pointer[issued]
	failed  atomic.Uint64
	kick    wake.Signal
}

// issued is a certificate and the time when the API server issued it to us; zero for one that existed at the start.
type issued struct {
	*tls.Certificate
	got time.Time
}

const (
	answerPatience = 15 * time.Minute // how long a request may wait for its approval
	longestLook    = time.Hour        // the system time may change while we wait
)

// renewal is the back-off after a failure.
var renewal = wait.Backoff{Duration: time.Second, Factor: 2, Steps: math.MaxInt, Cap: 150 * time.Second, Jitter: 2}

// NewPair loads the certificate in the directory. If there is none, or an older one than initial, it uses initial (may be nil).
func NewPair(cfg PairConfig, initial *tls.Certificate) (*Pair, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	p := &Pair{cfg: cfg, files: pairFiles{cfg.Dir, cfg.Name, os.Symlink}, kick: wake.New()}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot use --cert-dir: %w", err)
	}
	stored, err := p.files.read()
	if err != nil {
		klog.ErrorS(err, "Cannot use a stored certificate; requesting a new one", "file", p.Path())
		stored = nil
	}
	if initial != nil && (stored == nil || initial.Leaf.NotBefore.After(stored.Leaf.NotBefore)) {
		stored = initial
	}
	if stored != nil {
		p.current.Store(&issued{Certificate: stored})
	}
	return p, nil
}

// Path is the file that always has, or links to, the newest certificate and its key.
func (p *Pair) Path() string { return p.files.path() }

// Current is the certificate in use, nil if there is none yet. It may have expired: the server's clock decides.
func (p *Pair) Current() *tls.Certificate {
	if h := p.current.Load(); h != nil {
		return h.Certificate
	}
	return nil
}

// Failures is the number of failed Renew calls.
func (p *Pair) Failures() uint64 { return p.failed.Load() }

// Kick triggers an immediate comparison of the template with the certificate.
func (p *Pair) Kick() { p.kick.Send() }

// Run renews until ctx ends. It logs failures and retries.
func (p *Pair) Run(ctx context.Context) error {
	retry := renewal
	for ctx.Err() == nil {
		if pause := p.due(); pause > 0 {
			p.sleep(ctx, min(pause, longestLook))
			continue
		}
		if err := p.Renew(ctx); err != nil && ctx.Err() == nil {
			pause := retry.Step()
			klog.ErrorS(err, "Cannot renew a certificate; using the current one and retrying", "certificate", p.cfg.Name, "retryIn", pause)
			p.sleep(ctx, pause)
			continue
		}
		retry = renewal
	}
	return nil
}

func (p *Pair) sleep(ctx context.Context, pause time.Duration) {
	timer := p.cfg.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	case <-p.kick:
	}
}

// due is the time until the next renewal.
func (p *Pair) due() time.Duration {
	template := p.cfg.Template()
	h := p.current.Load()
	switch {
	case template == nil:
		return longestLook
	case h == nil || !covers(h.Leaf, template):
		return 0
	}
	return renewIn(h.Leaf, h.got, p.cfg.Clock.Now(), p.jitterOf(h))
}

// jitterOf is constant for a certificate.
func (p *Pair) jitterOf(h *issued) float64 {
	n := 0
	for _, b := range h.Leaf.SerialNumber.Bytes() {
		n = (n*31 + int(b)) % 1000
	}
	return float64(n) / 1000
}

// covers reports whether a certificate includes everything wanted.
func covers(leaf *x509.Certificate, want *x509.CertificateRequest) bool {
	if leaf.Subject.CommonName != want.Subject.CommonName {
		return false
	}
	for _, group := range want.Subject.Organization {
		if !slices.Contains(leaf.Subject.Organization, group) {
			return false
		}
	}
	for _, name := range want.DNSNames {
		if !slices.Contains(leaf.DNSNames, name) {
			return false
		}
	}
	for _, ip := range want.IPAddresses {
		if !slices.ContainsFunc(leaf.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

// renewIn is the time until a certificate is renewed: until 70 to 90 % of its lifetime, selected by jitter (0 to 1) so that nodes that
// joined together do not renew together. got is when we received it, zero or with a monotonic reading. The lifetime counts from got,
// because signers backdate certificates. Our clock may be wrong: a certificate that has just arrived is never renewed immediately, and one
// whose lifetime has passed since got always is.
func renewIn(leaf *x509.Certificate, got, now time.Time, jitter float64) time.Duration {
	part := func(life time.Duration) time.Duration { return time.Duration(float64(life) * (0.7 + 0.2*jitter)) }
	whole := leaf.NotAfter.Sub(leaf.NotBefore)
	begin := leaf.NotBefore
	if got.IsZero() {
		return begin.Add(part(whole)).Sub(now)
	}
	if got.After(begin) && got.Before(leaf.NotAfter) {
		begin = got
	}
	pause := min(begin.Add(part(leaf.NotAfter.Sub(begin))).Sub(now), part(whole)-now.Sub(got))
	if got.Before(leaf.NotAfter) {
		return pause
	}
	return max(pause, min(whole/20, longestLook)-now.Sub(got))
}

// Renew requests a certificate for a new key and starts using it. It blocks until the API server has answered.
func (p *Pair) Renew(ctx context.Context) error {
	err := p.renew(ctx)
	if err != nil {
		p.failed.Add(1)
	}
	return err
}

func (p *Pair) renew(ctx context.Context) error {
	template := p.cfg.Template()
	if template == nil {
		return errors.New("the names for the certificate are not known yet")
	}
	h := p.current.Load()
	client, err := p.cfg.Client(h == nil || p.cfg.Clock.Now().After(h.Leaf.NotAfter))
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	request, err := certutil.MakeCSRFromTemplate(key, template)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	if p.cfg.Signer == certificates.KubeletServingSignerName {
		usages[1] = certificates.UsageServerAuth
	}
	answer, err := requestCertificate(ctx, client, p.cfg.Signer, request, usages)
	if err != nil {
		return err
	}
	return p.adopt(answer, keyPEM)
}

// adopt stores a certificate and starts using it.
func (p *Pair) adopt(certPEM, keyPEM []byte) error {
	cert, err := p.files.write(certPEM, keyPEM, p.cfg.Clock.Now())
	if err != nil {
		return fmt.Errorf("cannot store the new certificate: %w", err)
	}
	p.current.Store(&issued{cert, p.cfg.Clock.Now()})
	klog.InfoS("Renewed a certificate", "certificate", p.cfg.Name, "until", cert.Leaf.NotAfter)
	p.prune()
	if p.cfg.Changed != nil {
		p.cfg.Changed()
	}
	return nil
}

// kept is the number of old certificates that stay on disk: a long-lived node must not accumulate them.
const kept = 2

func (p *Pair) prune() {
	files, err := filepath.Glob(p.files.allDated())
	current, linkErr := filepath.EvalSymlinks(p.Path())
	if err != nil || linkErr != nil {
		return
	}
	slices.Sort(files) // by time, because of their names
	files = slices.DeleteFunc(files, func(f string) bool { return strings.EqualFold(filepath.Base(f), filepath.Base(current)) })
	for _, file := range files[:max(0, len(files)-kept)] {
		if err := os.Remove(file); err != nil {
			klog.V(2).InfoS("Cannot remove an old certificate", "err", err)
		}
	}
}
