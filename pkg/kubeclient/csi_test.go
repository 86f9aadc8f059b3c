package kubeclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/wake"
)

// TestCSIObjects: CSIDrivers are watched from the first request on, VolumeAttachments are read by name only, and each state of the Node is
// announced.
func TestCSIObjects(t *testing.T) {
	client := clientsettest.NewClientset(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}},
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1"}})
	objects := NewObjects(client, "n")
	c, err := NewCSIObjects(objects)
	if err != nil {
		t.Fatal(err)
	}
	before, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.CSIDriver(before, "disk.example.com"); err == nil || !strings.Contains(err.Error(), "has not listed CSIDrivers yet") {
		t.Errorf("before the list: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 2)
	go func() { ended <- objects.Run(ctx) }()
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
		<-ended
	}()
	if d, err := c.CSIDriver(ctx, "disk.example.com"); err != nil || d == nil {
		t.Errorf("%v, %v", d, err)
	}
	if d, err := c.CSIDriver(ctx, "other"); err != nil || d != nil {
		t.Errorf("one that is not there: %v, %v", d, err)
	}
	if a, err := c.VolumeAttachment(ctx, "csi-1"); err != nil || a.Name != "csi-1" {
		t.Errorf("%v, %v", a, err)
	}
	n, next := c.NodeState()
	if n != nil {
		t.Errorf("a Node: %v", n)
	}
	if _, err := client.Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-next:
	case <-ctx.Done():
		t.Fatal("the new Node was not announced")
	}
	if n, _ := c.NodeState(); n == nil {
		t.Error("no Node")
	}
	for _, action := range client.Actions() {
		if r := action.GetResource().Resource; r == "volumeattachments" && action.GetVerb() != "get" {
			t.Errorf("%s of %s, which the Node authorizer refuses", action.GetVerb(), r)
		}
	}
}

// TestWithoutCSIVolumes: a node without CSI volumes does not watch CSIDrivers.
func TestWithoutCSIVolumes(t *testing.T) {
	client := clientsettest.NewClientset()
	c, err := NewCSIObjects(NewObjects(client, "n"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx); err != nil || len(client.Actions()) > 0 {
		t.Errorf("%v, %v", err, client.Actions())
	}
}

// TestCSIDriversNotListed: a request for a CSIDriver returns in time and says why there is no list.
func TestCSIDriversNotListed(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "storage.k8s.io", Resource: "csidrivers"}, "", errors.New(`User "system:node:n" cannot list them`))
	for _, test := range []struct {
		name, want string
		answer     func(context.Context) error
	}{
		{"no permission", `may not list and watch csidrivers.storage.k8s.io, which the ClusterRole system:node allows: failed to list *v1.CSIDriver: csidrivers.storage.k8s.io is forbidden: User "system:node:n"`,
			func(context.Context) error { return forbidden }},
		{"an error", "has not listed CSIDrivers yet: failed to list *v1.CSIDriver: connection refused", func(context.Context) error { return errors.New("connection refused") }},
		{"no answer", "has not listed CSIDrivers yet, it does not answer: gave up after 300ms", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
	} {
		synctest.Test(t, func(t *testing.T) { // its clock stands still while the informer works
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			client := clientsettest.NewClientset()
			client.PrependReactor("list", "csidrivers", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.answer(ctx) })
			c, err := NewCSIObjects(NewObjects(client, "n"))
			if err != nil {
				t.Fatal(err)
			}
			c.wait = 300 * time.Millisecond
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			if _, err = c.CSIDriver(ctx, "disk.example.com"); err == nil || !strings.Contains(err.Error(), test.want) || ctx.Err() != nil {
				t.Errorf("%s: %v\nwant %s", test.name, err, test.want)
			}
			cancel()
			<-ended
		})
	}
}

// TestOnCSIDrivers: a follower begins no watch, and learns of each change in the watch that a question has begun.
func TestOnCSIDrivers(t *testing.T) {
	client := clientsettest.NewClientset()
	c, err := NewCSIObjects(NewObjects(client, "n"))
	if err != nil {
		t.Fatal(err)
	}
	changed := wake.New()
	if err := c.OnCSIDrivers(changed.Send); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	if n := len(client.Actions()); n > 0 {
		t.Errorf("%d requests before the first question", n)
	}
	if _, err := c.CSIDriver(ctx, "disk.example.com"); err != nil {
		t.Fatal(err)
	}
	drivers := client.CSIDrivers()
	for _, change := range []func() error{
		func() error {
			_, err := drivers.Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com"}}, metav1.CreateOptions{})
			return err
		},
		func() error {
			_, err := drivers.Update(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "disk.example.com", Labels: map[string]string{"a": "b"}}}, metav1.UpdateOptions{})
			return err
		},
		func() error { return drivers.Delete(ctx, "disk.example.com", metav1.DeleteOptions{}) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the change was not announced")
		}
	}
	if d := c.KnownCSIDriver("disk.example.com"); d != nil {
		t.Errorf("deleted, and known as %v", d)
	}
}
