package images

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/image"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// FuzzFollows: reading a pull ends for any input, and an error in it is not lost.
func FuzzFollows(f *testing.F) {
	f.Add(`{"id":"a","status":"x"}`)
	f.Add(`{"errorDetail":{"message":"m"}}`)
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, text string) {
		if err := follows(strings.NewReader(`{"status":"x"}`+text), func() {}); err == nil && !strings.HasPrefix(strings.TrimSpace(text), "{") && strings.Trim(text, " \t\r\n") != "" &&
			!json.Valid([]byte(text)) {
			t.Errorf("%q: no error", text)
		}
		if err := follows(strings.NewReader(`{"error":"no"}`+text), func() {}); err == nil || err.Error() != "no" {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// TestListContainerdStore reads an answer of Docker 29 with containerd's store: an image from a file, one of a commit, and one whose name a later
// commit took. The last has neither tag nor digest, and can be removed by its id.
func TestListContainerdStore(t *testing.T) {
	data, err := os.ReadFile("testdata/list-29-containerd.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []image.Summary
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	const commit, nameless, pause = "sha256:323c0d66a7ea2b0448f538daaefd5d485a2269e374600a7ab0a174b1953e23da", "sha256:d4f71c7d3b07a5196ef60d29a615a145f60433c85adb61b7b749d401ec3cb61f",
		"sha256:d5fde3ebf1c1e51f26375208a30e6a94ef26f5391f77d229ce353d8f02a8f9b2"
	got := listed(all)
	if !slices.Equal(got.IDs, []string{commit, nameless, pause}) {
		t.Errorf("ids %q", got.IDs)
	}
	want := []v1.ContainerImage{
		{Names: []string{"x/c@" + commit, "x/c:1"}, SizeBytes: 12985831},
		{Names: []string{"winkube/pause@" + pause, "winkube/pause:1"}, SizeBytes: 2902295},
	}
	if !reflect.DeepEqual(got.Named, want) {
		t.Errorf("got  %v\nwant %v", got.Named, want)
	}
	if got := imageRef("docker.io/winkube/pause:1", pause, all[2].RepoDigests); got != pullablePrefix+"winkube/pause@"+pause {
		t.Errorf("reference of an image from a file: %s", got)
	}
	if got := imageRef(nameless, nameless, all[1].RepoDigests); got != "docker://"+nameless {
		t.Errorf("reference of an image without a name: %s", got)
	}
}

// TestRegistryErrors: engines' messages about a failed pull, with graph drivers and with containerd's store, become hints for users.
func TestRegistryErrors(t *testing.T) {
	const daemon = "Error response from daemon: "
	for text, want := range map[string]string{
		`Head "https://r/v2/app/manifests/1": unauthorized: authentication required`: "imagePullSecrets",
		// Docker 29 with containerd 2.4.2
		`unknown: failed to resolve reference "127.0.0.1:5997/private/bob/app:1": unexpected status from HEAD request to http://127.0.0.1:5997/v2/private/bob/app/manifests/1: 401 Unauthorized`: "imagePullSecrets",
		`failed to resolve reference "r/app:1": failed to authorize: failed to fetch oauth token: authorization server did not include a token in the response`:                                  "imagePullSecrets",
		`failed to resolve reference "r/app:1": unexpected status from HEAD request to https://r/v2/app/manifests/1: 403 Forbidden`:                                                              "imagePullSecrets",
		`unexpected status from GET request to https://r/v2/app/manifests/1: 429 Too Many Requests`:                                                                                              "limits pulls",
		`unexpected status from HEAD request to https://r/v2/app/manifests/1: 503 Service Unavailable`:                                                                                           pod.ErrRegistryUnavailable.Error(),
		`failed to do request: Head "https://r/v2/app/manifests/1": dial tcp 127.0.0.1:1: connect: connection refused`:                                                                           pod.ErrRegistryUnavailable.Error(),
		`no matching manifest for linux/amd64 in the manifest list entries: no match for platform in manifest: not found`:                                                                        "not for this node's system",
	} {
		got := registryError(errors.New(daemon + text)).Error()
		if !strings.Contains(got, want) || !strings.Contains(got, text) || strings.Contains(got, daemon) {
			t.Errorf("%s\nbecame %s\nwant   %s", text, got, want)
		}
	}
}
