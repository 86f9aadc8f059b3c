package nodejoin

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUnits: join writes the units of build/systemd.
func TestUnits(t *testing.T) {
	for _, name := range []string{"kubelet", "proxy"} {
		ours, err := units.ReadFile("units/" + name + ".service")
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := os.ReadFile("../../build/systemd/" + name + ".service")
		if err != nil || string(ours) != string(theirs) {
			t.Errorf("units/%s.service differs from build/systemd/%[1]s.service (%v)", name, err)
		}
	}
}

// TestUnitsLimitFiles: both programs may open as many files as the relay's limits count with, whatever the host's default is.
func TestUnitsLimitFiles(t *testing.T) {
	for _, name := range []string{"kubelet", "proxy"} {
		unit, err := units.ReadFile("units/" + name + ".service")
		if err != nil {
			t.Fatal(err)
		}
		_, service, _ := strings.Cut(string(unit), "\n[Service]\n")
		service, _, _ = strings.Cut(service, "\n[")
		if !strings.Contains(service, "\nLimitNOFILE=1048576\n") {
			t.Errorf("section Service of %s.service has no LimitNOFILE=1048576:\n%s", name, service)
		}
	}
}

func TestDiagnoseProxies(t *testing.T) {
	yes := true
	pod := func(node, owner string) v1.Pod {
		return v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: owner + "-x", Namespace: "kube-system", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: owner, Controller: &yes}}}, Spec: v1.PodSpec{NodeName: node}}
	}
	if f := diagnoseProxies("n", []v1.Pod{pod("n", "flannel"), pod("other", "kube-proxy"), {}}); f.Fault {
		t.Errorf("%v", f)
	}
	f := diagnoseProxies("n", []v1.Pod{pod("n", "kube-proxy")})
	if !f.Fault || !strings.Contains(f.What, "kube-system/kube-proxy-x") || !strings.Contains(f.Fix, "kube-proxy-patch.yaml") {
		t.Errorf("%v", f)
	}
}
