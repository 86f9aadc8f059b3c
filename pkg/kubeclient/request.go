package kubeclient

import (
	"context"
	"fmt"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/clientset"
)

// requestCertificate requests a certificate of signer for a CSR in PEM, and returns it, also in PEM. It waits until the request is approved and
// signed, refused, or ctx ends.
func requestCertificate(ctx context.Context, client clientset.Interface, signer string, csrPEM []byte, usages []certificates.KeyUsage) ([]byte, error) {
	request := &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec:       certificates.CertificateSigningRequestSpec{Request: csrPEM, SignerName: signer, Usages: usages},
	}
	created, err := client.CertificateSigningRequests().Create(ctx, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot request a certificate of %s: %w", signer, err)
	}
	klog.InfoS("Requested a certificate", "request", created.Name, "signer", signer)
	var answer []byte
	follow := clientset.ListerWatcher(client, client.CertificateSigningRequests(), func(options *metav1.ListOptions) {
		options.FieldSelector = only(created.Name).FieldSelector
	})
	_, err = watchtools.UntilWithSync(ctx, follow, &certificates.CertificateSigningRequest{}, nil, func(event watch.Event) (bool, error) {
		got, ok := event.Object.(*certificates.CertificateSigningRequest)
		switch {
		case !ok || got.Name != created.Name:
			return false, nil
		case event.Type == watch.Deleted || got.UID != created.UID:
			return false, fmt.Errorf("it was deleted")
		}
		answer, err = answerOf(got)
		return len(answer) > 0, err
	})
	if err != nil {
		return nil, fmt.Errorf("CertificateSigningRequest %s has no certificate (kubectl get csr %s): %w", created.Name, created.Name, err)
	}
	return answer, nil
}

// answerOf is the certificate of a request, nil if there is no answer yet, or why it was refused.
func answerOf(request *certificates.CertificateSigningRequest) ([]byte, error) {
	approved := false
	for _, c := range request.Status.Conditions {
		switch c.Type {
		case certificates.CertificateDenied:
			return nil, fmt.Errorf("it was denied: %s: %s", c.Reason, c.Message)
		case certificates.CertificateFailed:
			return nil, fmt.Errorf("the signer failed: %s: %s", c.Reason, c.Message)
		case certificates.CertificateApproved:
			approved = approved || c.Status == v1.ConditionTrue || c.Status == "" // "": of a version before conditions had one
		}
	}
	if !approved {
		return nil, nil
	}
	return request.Status.Certificate, nil
}
