package kinds

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/pkg/volume/atomic"
)

// trustBundles makes files of ClusterTrustBundles.
type trustBundles struct {
	api interface {
		// TrustBundles lists the ClusterTrustBundle called name, or when name is "" those of signer that selector chooses.
		TrustBundles(ctx context.Context, name, signer, selector string) ([]certificatesv1beta1.ClusterTrustBundle, error)
	}
}

// read is the file of a projected clusterTrustBundle: every certificate of the bundles once, as PEM without headers and comments.
// The order means nothing (API: clusterTrustBundle.path); it is that of their bytes, so that the same bundles make the same file.
func (k trustBundles) read(ctx context.Context, src *v1.ClusterTrustBundleProjection, mode *int32) (atomic.Content, error) {
	var name, signer, selector string
	selected := labels.Nothing() // API: an unset selector matches nothing, an empty one everything
	switch {
	case src.Name != nil && *src.Name != "":
		name = *src.Name
	case src.SignerName != nil && *src.SignerName != "":
		var err error
		signer = *src.SignerName
		if selected, err = metav1.LabelSelectorAsSelector(src.LabelSelector); err != nil {
			return nil, fmt.Errorf("clusterTrustBundle.labelSelector: %w", err)
		}
		selector = selected.String()
	default:
		return nil, errors.New("clusterTrustBundle has neither name nor signerName")
	}
	found := map[string]bool{}
	matched := 0
	if name != "" || src.LabelSelector != nil {
		bundles, err := k.api.TrustBundles(ctx, name, signer, selector)
		if err != nil {
			return nil, fmt.Errorf("cannot read ClusterTrustBundles: %w", err)
		}
		for _, b := range bundles {
			if name != "" && b.Name != name || name == "" && (b.Spec.SignerName != signer || !selected.Matches(labels.Set(b.Labels))) {
				continue
			}
			matched++
			for block, rest := pem.Decode([]byte(b.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
				found[string(block.Bytes)] = true
			}
		}
	}
	optional := src.Optional != nil && *src.Optional
	switch {
	case matched == 0 && !optional && name != "":
		return nil, fmt.Errorf("clustertrustbundles.certificates.k8s.io %q not found", name)
	case matched == 0 && !optional:
		return nil, fmt.Errorf("combination of signerName %q and labelSelector %q matched zero ClusterTrustBundles", signer, selector)
	}
	var text bytes.Buffer
	for _, der := range slices.Sorted(maps.Keys(found)) {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}) // a Buffer takes everything
	}
	return atomic.Content{src.Path: atomic.File{Data: text.Bytes(), Mode: modeOf(nil, mode)}}, nil
}
