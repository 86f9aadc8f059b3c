package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// share is a kind that this package does not know: a server's directory that each pod gets a copy of, and a session on the server per volume,
// which lies outside of the pod's directory. It remembers nothing.
type share struct{ server string }

func (share) Name() string { return "kubernetes.io/quobyte" }

func (share) source(v volume.Volume) *v1.QuobyteVolumeSource {
	if v.PV != nil {
		return v.PV.Spec.Quobyte
	}
	return v.Spec.Quobyte
}

func (k share) Has(v volume.Volume) bool { return k.source(v) != nil }

func (k share) session(uid, name string) string {
	return filepath.Join(k.server, "sessions", uid+"-"+name)
}

func (k share) Prepare(ctx context.Context, v volume.Volume) (string, error) {
	dir, err := v.Dir()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(k.server, k.source(v).Volume))
	if err := errors.Join(err, ctx.Err(), os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Join(k.server, "sessions"), 0o755)); err != nil {
		return "", err
	}
	return dir, errors.Join(os.WriteFile(k.session(string(v.Pod.UID), v.Spec.Name), nil, 0o600), os.WriteFile(filepath.Join(dir, "f"), data, 0o644))
}

func (k share) Mount(_ context.Context, v volume.Volume) (volume.Mount, error) {
	dir, err := v.Dir()
	return volume.Mount{Path: dir, ReadOnly: k.source(v).ReadOnly}, err
}

func (share) Usage(v volume.Volume) (disk.Place, bool, error) {
	dir, err := v.Dir()
	return disk.Place{Path: dir, Own: true}, true, err
}

func (k share) Clean(_ context.Context, left volume.Remains) error {
	volumes, err := left.Volumes(k.Name())
	for _, v := range volumes {
		if _, missing := os.Stat(v.Dir); missing == nil {
			err = errors.Join(err, os.Remove(k.session(string(left.UID), v.Name)), os.RemoveAll(v.Dir))
		}
	}
	return err
}

// TestOtherKind: a kind that is added to the table alone, inline and behind a claim, is prepared, mounted, refreshed, measured, and after a
// restart of the agent cleaned up from what lies on disk, when the API has nothing of it any more.
func TestOtherKind(t *testing.T) {
	for _, platform := range []pod.Platform{volumetest.Linux(), volumetest.Windows()} {
		t.Run(platform.OS, func(t *testing.T) {
			r := volumetest.New(t, platform)
			server := t.TempDir()
			export := filepath.Join(server, "export")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(export, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := volumetest.Pod(volumetest.Vol("inline", v1.VolumeSource{Quobyte: &v1.QuobyteVolumeSource{Volume: "export", ReadOnly: true}}), volumetest.ClaimVol(false),
				volumetest.Vol("tmp", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
			if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "volume kind quobyte is not supported") {
				t.Errorf("before it is in the table: %v", err)
			}
			r.Restart(share{server})
			r.Bind("data", v1.PersistentVolumeSource{Quobyte: &v1.QuobyteVolumeSource{Volume: "export"}})
			if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "v" : open `) {
				t.Errorf("the kind's own error: %v", err)
			}
			for _, text := range []string{"one", "two"} {
				write(text)
				paths := r.MustPrepare(p)
				for name, readOnly := range map[string]bool{"inline": true, "v": false} {
					if want := filepath.Join(r.Host.Root, "pods/uid-1/volumes/kubernetes.io~quobyte", name); paths[name] != want {
						t.Errorf("%s lies at %s, want %s", name, paths[name], want)
					}
					m, err := r.Mount(p, v1.VolumeMount{Name: name, MountPath: "/x"})
					if err != nil || m.HostPath != paths[name] || m.ReadOnly != readOnly {
						t.Errorf("%s: %+v, %v", name, m, err)
					}
					if got := volumetest.Tree(t, m.HostPath); got != "f 644 "+text+"\n" {
						t.Errorf("%s has %s, want %s", name, got, text)
					}
					if got := r.Plugin(p, &v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Quobyte: &v1.QuobyteVolumeSource{}}}); got != "kubernetes.io/quobyte" {
						t.Errorf("%s has the kind %q", name, got)
					}
				}
				if _, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "made/here"}); err != nil {
					t.Errorf("subPath: %v", err)
				}
			}
			places, err := r.Places(p)
			claimed := slices.ContainsFunc(places, func(d disk.Place) bool { return d.Volume == "v" && d.Claim == "data" && d.Own })
			if err != nil || len(places) != 3 || !claimed {
				t.Errorf("measured: %+v, %v", places, err)
			}

			// The agent is killed; claim, volume and pod are deleted meanwhile.
			r.API.Claims, r.API.Volumes, r.API.Down = nil, nil, errors.New("connection refused")
			r.Restart(share{server})
			if uids, err := r.Leftovers(); err != nil || !slices.Contains(uids, p.UID) {
				t.Errorf("left over: %v, %v", uids, err)
			}
			if sessions, err := os.ReadDir(filepath.Join(server, "sessions")); err != nil || len(sessions) != 2 {
				t.Errorf("sessions before the end: %v, %v", sessions, err)
			}
			for range 2 {
				if err := r.Clean(t.Context(), p.UID); err != nil {
					t.Error(err)
				}
			}
			sessions, err := os.ReadDir(filepath.Join(server, "sessions"))
			if _, gone := os.Stat(r.Dir(p.UID)); err != nil || len(sessions) != 0 || !errors.Is(gone, os.ErrNotExist) || len(r.Kernel.Points) != 0 {
				t.Errorf("left: sessions %v, %v; directory %v; mounts %q", sessions, err, gone, r.Kernel.Points)
			}
			if _, err := os.Stat(export); err != nil {
				t.Errorf("the server's file went with the pod: %v", err)
			}
		})
	}
}

// TestCleanKindFails: what a kind cannot undo yet keeps the pod's directory, from which it is done at the next try.
func TestCleanKindFails(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	server := t.TempDir()
	r.Restart(share{server})
	if err := os.WriteFile(filepath.Join(server, "export"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{Quobyte: &v1.QuobyteVolumeSource{Volume: "export"}}))
	dir := r.MustPrepare(p)["v"]
	session := share{server}.session("uid-1", "v")
	if err := errors.Join(os.Remove(session), os.MkdirAll(filepath.Join(session, "busy"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), p.UID); err == nil || !strings.Contains(err.Error(), "kubernetes.io/quobyte") {
		t.Errorf("a kind that fails: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		t.Errorf("deleted although a kind has not done with it: %v", err)
	}
}
