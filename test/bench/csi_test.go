package main

import (
	"fmt"
	"reflect"
	"testing"
)

// TestClaims: each pod of a run gets its claims and no other's, in the order in which they are mounted.
func TestClaims(t *testing.T) {
	p := &pods{node: "n"}
	p.claims = claimsOf([]string{"a", "b", "c", "d", "e"}, 2, 2, func(i int) string { return p.name("x", i) })
	if want := (map[string][]string{"x-n-0": {"a", "b"}, "x-n-1": {"c", "d"}}); !reflect.DeepEqual(p.claims, want) {
		t.Errorf("got %v, want %v", p.claims, want)
	}
	for name, want := range map[string]string{"x-n-1": "v0=c v1=d ", "other": ""} {
		pod := p.make(name, true)
		got := ""
		for i, volume := range pod.Spec.Volumes {
			got += volume.Name + "=" + volume.PersistentVolumeClaim.ClaimName + " "
			if mount := pod.Spec.Containers[0].VolumeMounts[i]; mount.Name != volume.Name || mount.MountPath != "/"+volume.Name {
				t.Errorf("%s: volume %s is mounted as %s at %s", name, volume.Name, mount.Name, mount.MountPath)
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestCSIObjects: a volume and its claim name each other, so that no other claim gets it.
func TestCSIObjects(t *testing.T) {
	pv, claim := csiObjects("n-1", "handle")
	if pv.Spec.ClaimRef.Name != claim.Name || pv.Spec.ClaimRef.Namespace != claim.Namespace || claim.Spec.VolumeName != pv.Name || pv.Spec.CSI.VolumeHandle != "handle" {
		t.Errorf("got %+v, %+v", pv.Spec, claim)
	}
}

// TestMeasured: volumes count if they are the bench's and the figures are the driver's.
func TestMeasured(t *testing.T) {
	volume := func(claim, namespace string, inodes int) string {
		return fmt.Sprintf(`{"pvcRef":{"name":%q,"namespace":%q},"inodes":%d}`, claim, namespace, inodes)
	}
	answer := `{"pods":[{},{"volume":[` + volume("a", "bench", driverInodes) + `,` + volume("b", "bench", 7) + `,{"inodes":1048576}]},{"volume":[` +
		volume("a", "other", driverInodes) + `,` + volume("z", "bench", driverInodes) + `,` + volume("c", "bench", driverInodes) + `]}]}`
	if n, err := measured([]byte(answer), []string{"a", "b", "c"}); n != 2 || err != nil {
		t.Errorf("got %d, %v, want 2", n, err)
	}
	if _, err := measured([]byte("{"), nil); err == nil {
		t.Error("half an answer is no error")
	}
}

func TestNodeCalls(t *testing.T) {
	if n := nodeCalls([]string{"started", "begin NodeGetInfo", "begin NodeStageVolume v /s", "end NodeStageVolume v OK", "begin Probe", ""}); n != 2 {
		t.Errorf("got %d, want 2", n)
	}
}
