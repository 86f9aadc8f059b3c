package inuse_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/volume/inuse"
	"github.com/winkube/winkube/pkg/wake"
)

type name string

func (n name) Unique() v1.UniqueVolumeName { return "kind/" + v1.UniqueVolumeName(n) }

func node(version string, volumes ...v1.UniqueVolumeName) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}, Status: v1.NodeStatus{VolumesInUse: volumes}}
}

// TestVolumes: a volume is in use until the last pod has dropped it, and the control plane knows it from the version that was reported.
func TestVolumes(t *testing.T) {
	all := inuse.Volumes[name]{Changed: wake.New()}
	want := func(changed bool, names ...v1.UniqueVolumeName) {
		t.Helper()
		select {
		case <-all.Changed:
			if !changed {
				t.Error("the Node's status is compared for nothing")
			}
		default:
			if changed {
				t.Error("the Node's status is not compared")
			}
		}
		if got := all.Names(func(n name) bool { return n != "local" }); !slices.Equal(got, names) {
			t.Errorf("in use: %q, want %q", got, names)
		}
	}
	all.Add("x", "a")
	want(true, "kind/x")
	all.Add("x", "b")
	want(false, "kind/x")
	all.Add("local", "a")
	want(true, "kind/x")
	known, told := all.Knows(node("9", "kind/x"), "x")
	if known {
		t.Error("known before it was reported")
	}
	all.Reported(node("5", "kind/x"))
	<-told
	for version, want := range map[string]bool{"4": false, "5": true, "10": true} {
		if known, _ := all.Knows(node(version, "kind/x"), "x"); known != want {
			t.Errorf("version %s: %v", version, known)
		}
	}
	if known, _ := all.Knows(nil, "x"); known {
		t.Error("known without a Node")
	}
	all.Reported(node("11"))
	if known, _ := all.Knows(node("10", "kind/x"), "x"); known {
		t.Error("known although the Node does not list it any more")
	}
	all.DropAll("a")
	want(true, "kind/x")
	all.Drop("x", "b")
	want(true)
	all.Drop("x", "b")
	want(false)
}
