package podspec

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestParseImageName(t *testing.T) {
	const digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for _, test := range []struct {
		image, full string
		policy      v1.PullPolicy
	}{
		{"busybox", "busybox:latest", v1.PullAlways},
		{"busybox:latest", "busybox:latest", v1.PullAlways},
		{"busybox:1", "busybox:1", v1.PullIfNotPresent},
		{"reg.example:5000/a/b", "reg.example:5000/a/b:latest", v1.PullAlways},
		{"reg.example:5000/a/b:1", "reg.example:5000/a/b:1", v1.PullIfNotPresent},
		{"a" + digest, "a" + digest, v1.PullIfNotPresent},
		{"a:1" + digest, "a:1" + digest, v1.PullIfNotPresent},
	} {
		name, err := ParseImage(test.image)
		if err != nil || name.Full != test.full {
			t.Errorf("%s: got %q %v, want %q", test.image, name.Full, err, test.full)
		}
		if got := PullPolicy(&v1.Container{}, name); got != test.policy {
			t.Errorf("%s: policy %s, want %s", test.image, got, test.policy)
		}
	}
	for _, bad := range []string{"", "Upper", "a b", "a:", "-x", "a@sha256:1", strings.Repeat("0", 64)} {
		if name, err := ParseImage(bad); err == nil {
			t.Errorf("%q was read as %q", bad, name.Full)
		}
	}
}
