package nodejoin

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/csi/drivers"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/plugins"
)

// nodeEvents receives the Events of a Registry.
type nodeEvents chan string

func (e nodeEvents) NodeEvent(kind, reason, message string) {
	e <- kind + " " + reason + " " + message
}

// csiNode is a Registry with a node's rights at a real API server.
type csiNode struct {
	*control
	registry *drivers.Registry
	events   nodeEvents
	nodes    clientset.Interface // with the node's rights
}

// TestCSIDriversRealAPIServer: the Node authorizer, NodeRestriction and validation of a real API server allow a node to
// publish, change and remove its drivers.
func TestCSIDriversRealAPIServer(t *testing.T) {
	if os.Getenv("WINKUBE_E2E") == "" {
		t.Skip("WINKUBE_E2E=1 runs it, after make up has built the control plane")
	}
	n := &csiNode{control: startControl(t), events: make(nodeEvents, 100)}
	n.authenticate()
	period := int64(10) // the API server's minimum
	_, err := n.client.StorageV1().CSIDrivers().Create(t.Context(), &storage.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "a.example.com"}, Spec: storage.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &period}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kubeclient.NewCSIObjects(kubeclient.NewObjects(n.nodes, "n1"))
	if err != nil {
		t.Fatal(err)
	}
	n.registry = drivers.New("n1", drivers.Parts{Client: n.nodes, Objects: objects, Events: n.events, Counted: func(string, string, time.Duration, error, bool) {}, Clock: clock.RealClock{}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- n.registry.Run(ctx) }()
	go func() { ended <- objects.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended; <-ended })
	first := n.register()

	info := &pb.NodeGetInfoResponse{NodeId: "id1", MaxVolumesPerNode: 9, AccessibleTopology: &pb.Topology{Segments: map[string]string{"topology.example.com/zone": "z1"}}}
	driver, release := n.driver("a.example.com", info)
	n.soon(`a.example.com=id1[topology.example.com/zone]9 {"a.example.com":"id1"} z1 owned`)
	driver.SetInfo(&pb.NodeGetInfoResponse{NodeId: "id1", MaxVolumesPerNode: 5, AccessibleTopology: info.AccessibleTopology})
	n.soon(`a.example.com=id1[topology.example.com/zone]5 {"a.example.com":"id1"} z1 owned`) // after the period

	_, releaseNext := n.driver("a.example.com", &pb.NodeGetInfoResponse{NodeId: "id2"})
	release()
	n.soon(`a.example.com=id2[]-1 {"a.example.com":"id2"} z1 owned`)

	n.driver("refused.example.com", &pb.NodeGetInfoResponse{NodeId: "x", AccessibleTopology: &pb.Topology{Segments: map[string]string{"node-restriction.kubernetes.io/x": "y"}}})
	select {
	case got := <-n.events:
		if !strings.HasPrefix(got, "Warning CSIDriverNotPublished CSI driver refused.example.com is not in the Node's CSINode: ") {
			t.Errorf("Event %s", got)
		}
		t.Log(got)
	case <-time.After(time.Minute):
		t.Fatal("no Event of a driver whose label a node may not have")
	}

	if err := n.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.registry.SetNode(nil)
	if again := n.register(); again.UID == first.UID {
		t.Fatal("the Node is the same")
	}
	n.soon(`a.example.com=id2[]-1 {"a.example.com":"id2"}  owned`)
	releaseNext()
	n.soon(`   owned`)
}

// authenticate creates the client of node n1's kubelet.
func (n *csiNode) authenticate() {
	n.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(n.key)
	if err != nil {
		n.Fatal(err)
	}
	_, cert := n.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	n.nodes, err = clientset.NewForConfig(&rest.Config{Host: "https://" + n.address, TLSClientConfig: rest.TLSClientConfig{
		CAData: n.caPEM, CertData: cert, KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}})
	if err != nil {
		n.Fatal(err)
	}
}

// register creates the Node once the API server's roles exist, and makes the Registry see it.
func (n *csiNode) register() *v1.Node {
	n.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		made, err := n.nodes.Nodes().Create(n.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
		if err == nil {
			n.registry.SetNode(made)
			return made
		}
		if time.Now().After(end) {
			n.Fatal(err)
		}
	}
}

// driver registers a driver.
func (n *csiNode) driver(name string, info *pb.NodeGetInfoResponse) (*csitest.Driver, func()) {
	n.Helper()
	d := csitest.New(n.T, name)
	d.SetInfo(info)
	socket := filepath.Join(n.TempDir(), "s")
	stop, err := d.Serve(socket)
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(stop)
	release, err := n.registry.Register(n.Context(), plugins.Plugin{Type: "CSIPlugin", Name: name, Endpoint: socket, Versions: []string{"1.0.0"}})
	if err != nil {
		n.Fatal(err)
	}
	return d, release
}

// soon waits until the API server shows want: drivers of the CSINode, ids and zone of the Node, and the CSINode's
// owner.
func (n *csiNode) soon(want string) {
	n.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got = n.look(); got == want {
			return
		}
	}
	n.Fatalf("got  %s\nwant %s", got, want)
}

func (n *csiNode) look() string {
	node, err := n.client.CoreV1().Nodes().Get(n.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	object, err := n.client.StorageV1().CSINodes().Get(n.Context(), "n1", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "no CSINode"
	} else if err != nil {
		return err.Error()
	}
	var all []string
	for _, d := range object.Spec.Drivers {
		most := int32(-1)
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			most = *d.Allocatable.Count
		}
		all = append(all, fmt.Sprintf("%s=%s%s%d", d.Name, d.NodeID, d.TopologyKeys, most))
	}
	whose := "another's"
	if len(object.OwnerReferences) == 1 && object.OwnerReferences[0].UID == node.UID {
		whose = "owned"
	}
	return strings.Join(all, " ") + " " + node.Annotations["csi.volume.kubernetes.io/nodeid"] + " " + node.Labels["topology.example.com/zone"] + " " + whose
}
