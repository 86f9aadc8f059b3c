package csidriver_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/winkube/winkube/test/csidriver"
)

// TestOrder: lines are separated by semicolons; S, P, U and T stand for stage, publish, unpublish and unstage of a volume, "P a" for publish at
// target a. A small letter is the call's beginning, ok and no its end.
func TestOrder(t *testing.T) {
	for name, test := range map[string]struct{ lines, wrong, left string }{
		"nothing":                  {"started;registered", "", ""},
		"a life":                   {"started; S; P a; P b; U a; U b; T", "", ""},
		"inline":                   {"csi-1 P a; csi-1 U a", "", ""},
		"again after each":         {"S; S; P a; P a; U a; U a; T; T", "", ""},
		"still used":               {"S; P a", "", "v is published at a; v is staged"},
		"still staged":             {"S; P a; U a", "", "v is staged"},
		"never staged":             {"P a; U a", "line 1 published at a although no stage has succeeded", ""},
		"stage failed":             {"s; S no; P a; U a; T", "line 3 published at a although no stage has succeeded", ""},
		"stage failed, undone":     {"s; S no; T", "", ""},
		"stage failed, left":       {"s; S no", "", "v is staged"},
		"publish failed, left":     {"S; p a; P no; T", `line 5 unstaged although it may be published at ["a"]`, "v is published at a"},
		"publish failed, undone":   {"S; p a; P no; U a; T", "", ""},
		"unpublish failed":         {"S; P a; u a; U no; T", `line 7 unstaged although it may be published at ["a"]`, "v is published at a"},
		"unstage failed, staged":   {"S; t; T no; S; P a; U a; T", "", ""},
		"unstage failed, not":      {"S; t; T no; P a; U a; T", "line 5 published at a although no stage has succeeded", ""},
		"two at a time":            {"S; p a; u a; P ok; U ok; T", "line 4 NodeUnpublishVolume begins while NodePublishVolume is under way", ""},
		"one of a dead kubelet":    {"s; kubelet killed; s; S ok; S ok; T", "", ""},
		"and one of the next":      {"s; kubelet killed; s; s; S ok; S ok; S ok; T", "line 4 NodeStageVolume begins while NodeStageVolume is under way", ""},
		"driver dies in stage":     {"s; started; S; P a; U a; T", "", ""},
		"driver dies, not staged":  {"s; started; P a; U a; T", "line 3 published at a although no stage has succeeded", ""},
		"driver dies in publish":   {"S; p a; started; T", `line 5 unstaged although it may be published at ["a"]`, "v is published at a"},
		"driver dies in unpublish": {"S; P a; u a; started; U a; T", "", ""},
		"driver dies in unstage":   {"S; t; started", "", "v is staged"},
		"figures beside":           {"begin NodeGetVolumeStats v a; S; end NodeGetVolumeStats v OK; T", "", ""},
		"two volumes":              {"s; w s; S ok; w S ok; T; w T", "", ""},
		"an end too many":          {"S; S ok; T", "line 3 end of NodeStageVolume, which did not begin", ""},
	} {
		wrong, left := csidriver.Order(written(test.lines))
		clean := strings.NewReplacer(", volume v:", "", "volume ", "")
		if got := clean.Replace(strings.Join(wrong, "; ")); got != test.wrong {
			t.Errorf("%s: wrong: got %q, want %q", name, got, test.wrong)
		}
		if got := clean.Replace(strings.Join(left, "; ")); got != test.left {
			t.Errorf("%s: left: got %q, want %q", name, got, test.left)
		}
	}
}

// written are the lines of calls.log for those of TestOrder.
func written(short string) (lines []string) {
	for part := range strings.SplitSeq(short, ";") {
		words := strings.Fields(part)
		volume := "v"
		if len(words) > 1 && (words[0] == "w" || words[0] == "csi-1") {
			volume, words = words[0], words[1:]
		}
		at := strings.Index("SPUT", strings.ToUpper(words[0]))
		if at < 0 || len(words[0]) > 1 {
			lines = append(lines, strings.TrimSpace(part))
			continue
		}
		path := "stage"
		if len(words) > 1 {
			path = words[1]
		}
		begin, end := "begin "+csidriver.Methods[at]+" "+volume+" "+path, "end "+csidriver.Methods[at]+" "+volume+" "
		switch {
		case strings.ToLower(words[0]) == words[0]:
			lines = append(lines, begin)
		case path == "ok":
			lines = append(lines, end+"OK")
		case path == "no":
			lines = append(lines, end+"Unavailable")
		default:
			lines = append(lines, begin, end+"OK")
		}
	}
	return lines
}

// TestLinger: a call does its work, is under way until it may answer, and its paths are in the log. The log says when the kubelet has registered
// the driver.
func TestLinger(t *testing.T) {
	r := start(t)
	d := r.soon(true)
	id, err := r.Make("one", 1000)
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, want bool, ok func() (bool, error)) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			got, err := ok()
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s is %t, want %t", what, got, want)
			}
		}
	}
	await("registered", true, r.Registered)
	if err := r.Linger("NodeUnstageVolume"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := d.Node().NodeUnstageVolume(ctx, &pb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(r.root, "stage")})
		ended <- err
	}()
	await("under way", true, func() (bool, error) { return r.UnderWay("NodeUnstageVolume") })
	select {
	case err := <-ended:
		t.Errorf("answered meanwhile: %v", err)
	default:
	}
	if err := r.Resume("NodeUnstageVolume"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	await("under way", false, func() (bool, error) { return r.UnderWay("NodeUnstageVolume") })
	calls, err := r.Calls()
	if want := "begin NodeUnstageVolume " + id + " " + filepath.Join(r.root, "stage"); err != nil || !slices.Contains(calls, want) {
		t.Errorf("calls %q, %v, want %q among them", calls, err, want)
	}
	if err := r.KubeletKilled(); err != nil {
		t.Fatal(err)
	}
	await("registered", false, r.Registered)
	if garbage, err := r.Garbage(); err != nil || len(garbage) > 0 {
		t.Errorf("garbage: %q, %v", garbage, err)
	}
}
