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
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/wake"
)

// PairConfig says what a Pair is.
type PairConfig struct {
	Name   string // of the files: NAME-current.pem leads to NAME-<time>.pem with certificate and key
	Dir    string // --cert-dir
	Signer string // certificates.KubeAPIServerClientKubeletSignerName or KubeletServingSignerName
	// Template is what the certificate shall be for; nil: not known yet. It is asked whenever Kick is called.
	Template func() *x509.CertificateRequest
	// Client is called for each request; expired says that the current certificate has expired.
	Client func(expired bool) (kubernetes.Interface, error)
	// Changed is called after there is a new certificate.
	Changed func()
	Clock   clock.WithTicker
}

// Pair is a certificate and its key, which are replaced by ones from the API server before they end.
type Pair struct {
	cfg     PairConfig
	store   certificate.FileStore
	current atomic.Pointer[issued]
	failed  atomic.Uint64
	kick    wake.Signal
}

// issued is a certificate and when it came from the API server, the zero time for one that was there at the start.
type issued struct {
	*tls.Certificate
	got time.Time
}

const (
	answerPatience = 15 * time.Minute // how long a request may wait for whoever approves it
	longestLook    = time.Hour        // the clock may be set while we wait
)

// renewal is the back-off after a failure.
var renewal = wait.Backoff{Duration: time.Second, Factor: 2, Steps: math.MaxInt, Cap: 150 * time.Second, Jitter: 2}

// NewPair takes what is in the directory. initial is used where that holds nothing, or something older; nil: there is none.
func NewPair(cfg PairConfig, initial *tls.Certificate) (*Pair, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	p := &Pair{cfg: cfg, kick: wake.New()}
	var err error
	if p.store, err = certificate.NewFileStoreWithLogger(klog.Background().V(4), cfg.Name, cfg.Dir, cfg.Dir, "", ""); err != nil {
		return nil, fmt.Errorf("cannot use --cert-dir: %w", err)
	}
	stored, err := p.store.Current()
	var none *certificate.NoCertKeyError
	if err != nil && !errors.As(err, &none) {
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

// Path is the file that always leads to the newest certificate and its key.
func (p *Pair) Path() string { return p.store.CurrentPath() }

// Current is the certificate in use, nil when there is none yet. An expired one is still returned: the other side's clock decides.
func (p *Pair) Current() *tls.Certificate {
	if h := p.current.Load(); h != nil {
		return h.Certificate
	}
	return nil
}

// Failures is how often Renew failed.
func (p *Pair) Failures() uint64 { return p.failed.Load() }

// Kick has the template compared with the certificate immediately.
func (p *Pair) Kick() { p.kick.Send() }

// Run renews until ctx ends. Failures are logged and tried again.
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

// due is how long nothing need be done.
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

// jitterOf is the same for one certificate however often it is asked.
func (p *Pair) jitterOf(h *issued) float64 {
	n := 0
	for _, b := range h.Leaf.SerialNumber.Bytes() {
		n = (n*31 + int(b)) % 1000
	}
	return float64(n) / 1000
}

// covers says whether a certificate is for all that is wanted.
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

// renewIn is how long from now a certificate is used before the next is asked for: until 70 to 90 % of its life are over, chosen by jitter
// (0 to 1) so that nodes that joined together do not ask together. got, which is zero or carries a monotonic reading, is when it came: its
// life counts from there, as signers date certificates back. Our clock may be wrong: a certificate that came a moment ago is never asked for
// again immediately, and one whose lifetime has passed since it came is, whatever the clock says.
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

// Renew asks for a certificate with a new key and takes it into use. It blocks until the API server has answered.
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
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", p.cfg.Signer, nil, usages, key)
	if err != nil {
		return fmt.Errorf("cannot request a certificate of %s: %w", p.cfg.Signer, err)
	}
	klog.InfoS("Requested a certificate", "request", name, "signer", p.cfg.Signer)
	answer, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return fmt.Errorf("CertificateSigningRequest %s has no certificate (kubectl get csr %s): %w", name, name, err)
	}
	return p.adopt(answer, keyPEM)
}

// adopt stores a certificate and takes it into use.
func (p *Pair) adopt(certPEM, keyPEM []byte) error {
	cert, err := p.store.Update(certPEM, keyPEM)
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

// kept is how many certificates stay on disk beside the current: a node that lives for years shall not collect them.
const kept = 2

func (p *Pair) prune() {
	files, err := filepath.Glob(filepath.Join(p.cfg.Dir, p.cfg.Name+"-????-??-??-??-??-??.pem"))
	current, linkErr := filepath.EvalSymlinks(p.Path())
	if err != nil || linkErr != nil {
		return
	}
	slices.Sort(files) // by time, as they are named
	files = slices.DeleteFunc(files, func(f string) bool { return strings.EqualFold(filepath.Base(f), filepath.Base(current)) })
	for _, file := range files[:max(0, len(files)-kept)] {
		if err := os.Remove(file); err != nil {
			klog.V(2).InfoS("Cannot remove an old certificate", "err", err)
		}
	}
}
