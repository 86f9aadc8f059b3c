package kubeclient

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
)

var csrs = certificates.SchemeGroupVersion.WithResource("certificatesigningrequests")

// TestRequestCertificate: a request waits for its answer, and says why there is none.
func TestRequestCertificate(t *testing.T) {
	condition := func(kind certificates.RequestConditionType, status string) func(*certificates.CertificateSigningRequest) {
		return func(r *certificates.CertificateSigningRequest) {
			r.Status.Conditions = append(r.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: kind, Status: "True", Reason: "Why", Message: status})
		}
	}
	signed := func(r *certificates.CertificateSigningRequest) { r.Status.Certificate = []byte("cert") }
	for name, test := range map[string]struct {
		steps []func(*certificates.CertificateSigningRequest)
		want  string // "": the certificate
	}{
		"approved, then signed": {[]func(*certificates.CertificateSigningRequest){condition(certificates.CertificateApproved, ""), signed}, ""},
		"denied":                {[]func(*certificates.CertificateSigningRequest){condition(certificates.CertificateDenied, "not you")}, "it was denied: Why: not you"},
		"failed":                {[]func(*certificates.CertificateSigningRequest){condition(certificates.CertificateApproved, ""), condition(certificates.CertificateFailed, "no key")}, "the signer failed: Why: no key"},
		"signed, not approved":  {[]func(*certificates.CertificateSigningRequest){signed}, "timed out"},
		"of another request":    {[]func(*certificates.CertificateSigningRequest){func(r *certificates.CertificateSigningRequest) { r.UID = "2" }}, "it was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			client := clientsettest.NewClientset()
			client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
				r := action.(clienttesting.CreateAction).GetObject().(*certificates.CertificateSigningRequest)
				if r.GenerateName != "csr-" || r.Spec.SignerName != "example.com/s" || string(r.Spec.Request) != "PEM" || len(r.Spec.Usages) != 1 {
					t.Errorf("requested %+v", r)
				}
				r.Name, r.UID = "csr-1", "1"
				return true, r, client.Tracker().Add(r)
			})
			watched := clientsettest.OnceWatched(t, client, "certificatesigningrequests")
			go func() {
				watched()
				for _, step := range test.steps {
					obj, err := client.Tracker().Get(csrs, "", "csr-1")
					if err != nil {
						t.Error(err)
						return
					}
					r := obj.(*certificates.CertificateSigningRequest).DeepCopy()
					step(r)
					if err := client.Tracker().Update(csrs, r, ""); err != nil {
						t.Error(err)
					}
				}
			}()
			patience := time.Minute
			if test.want == "timed out" {
				patience = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			got, err := requestCertificate(ctx, client, "example.com/s", []byte("PEM"), []certificates.KeyUsage{certificates.UsageClientAuth})
			switch {
			case test.want == "":
				if err != nil || string(got) != "cert" {
					t.Errorf("%q, %v", got, err)
				}
			case err == nil || !strings.Contains(err.Error(), "kubectl get csr csr-1") || !strings.Contains(err.Error(), test.want):
				t.Errorf("%q, %v; want %s", got, err, test.want)
			}
		})
	}
}

// TestRequestRefused: the API server's refusal names the signer.
func TestRequestRefused(t *testing.T) {
	client := clientsettest.NewClientset()
	client.PrependReactor("create", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("not allowed")
	})
	if _, err := requestCertificate(t.Context(), client, "example.com/s", nil, nil); err == nil || err.Error() != "cannot request a certificate of example.com/s: not allowed" {
		t.Error(err)
	}
}

// TestPairFiles: names and links are those of upstream's kubelet, in whose place this one may be: it made the link by an absolute path.
func TestPairFiles(t *testing.T) {
	s := newSigner(t, time.Hour)
	dir := t.TempDir()
	t.Chdir(dir)
	files := pairFiles{"pki", "kubelet-client", os.Symlink}
	if cert, err := files.read(); cert != nil || err != nil {
		t.Errorf("in an empty directory: %v, %v", cert, err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 2 { // the second comes within the same second
		certPEM, keyPEM := s.pair(t)
		cert, err := files.write(certPEM, keyPEM, at)
		if err != nil {
			t.Fatal(err)
		}
		read, err := files.read()
		if err != nil || read.Leaf.SerialNumber.Cmp(cert.Leaf.SerialNumber) != 0 {
			t.Errorf("read %v, %v", read, err)
		}
	}
	names, _ := filepath.Glob("pki/*")
	if got := strings.Join(names, " "); got != filepath.FromSlash("pki/kubelet-client-2026-01-02-03-04-05.pem pki/kubelet-client-current.pem") {
		t.Errorf("files %s", got)
	}
	if goruntime.GOOS != "windows" { // Wine makes no link
		target, err := os.Readlink(files.path())
		if err != nil || !filepath.IsAbs(target) {
			t.Errorf("the link leads to %q, %v", target, err)
		}
	}
	first, _ := s.pair(t)
	_, otherKey := s.pair(t)
	before, _ := files.read()
	if _, err := files.write(first, otherKey, at); err == nil || !strings.Contains(err.Error(), "does not fit its key") {
		t.Errorf("a certificate for another key: %v", err)
	}
	if after, err := files.read(); err != nil || after.Leaf.SerialNumber.Cmp(before.Leaf.SerialNumber) != 0 {
		t.Errorf("after it the files have %v, %v", after, err)
	}
}
