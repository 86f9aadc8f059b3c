package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/test/csidriver"
	"github.com/winkube/winkube/test/lab"
)

const (
	manyVolumes   = 200
	volumesPerPod = 10
	// csiPatience is for everything that is not measured.
	csiPatience = 2 * time.Minute
	// benchLabel is on the volumes and claims of a run.
	benchLabel = "winkube.test/bench"
)

// storage is the CSI driver beside one kubelet, and its volumes.
type storage struct {
	*agent
	client  kubernetes.Interface
	outside csidriver.Outside
	claims  []string
}

// csi measures volumes of a CSI driver, which is the same beside both kubelets: pods with one volume each, and how long a restarted kubelet takes to
// know many volumes again.
func (b *bench) csi(ctx context.Context) (err error) {
	sides := map[*agent]*storage{}
	for _, agent := range b.agents() {
		sides[agent] = &storage{agent: agent, client: agent.pods.client, outside: csidriver.Outside{Data: agent.host.CSIData()}}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*csiPatience) // pods, volumes and drivers of both sides
		defer cancel()
		for _, side := range sides {
			err = errors.Join(err, side.down(ctx))
		}
		err = errors.Join(err, unlessMissing(b.ours.pods.client.StorageV1().CSIDrivers().Delete(ctx, lab.CSIDriverName, metav1.DeleteOptions{})))
	}()
	for agent, side := range sides {
		count := burstSize
		if agent == b.ours {
			count = manyVolumes
		}
		if err := side.up(ctx, count); err != nil {
			return err
		}
	}
	header()
	if err := b.csiBursts(ctx, sides); err != nil {
		return err
	}
	return b.csiRestart(ctx, sides[b.ours])
}

func unlessMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// unlessThere accepts what a run that was interrupted has made: a claim's volume has the same handle each time.
func unlessThere(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// soon repeats ok until it returns nil.
func soon(ctx context.Context, what string, every time.Duration, ok func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, every, csiPatience, true, func(ctx context.Context) (bool, error) {
		last = ok(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, errors.Join(err, last))
	}
	return nil
}

// up starts the driver beside the kubelet and makes claims that are bound to its volumes.
func (s *storage) up(ctx context.Context, count int) error {
	if err := s.stop(ctx); err != nil { // a run that was interrupted may have left it
		return err
	}
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: lab.CSIDriverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}
	if _, err := s.client.StorageV1().CSIDrivers().Create(ctx, object, metav1.CreateOptions{}); unlessThere(err) != nil {
		return err
	}
	s.host.CSIDriver = true
	if err := s.host.Process("csidriver").Start(ctx); err != nil {
		return err
	}
	if err := soon(ctx, "CSI driver of "+s.host.Name, 100*time.Millisecond, func(context.Context) error {
		if registered, err := s.outside.Registered(); err != nil || !registered {
			return fmt.Errorf("not registered with the kubelet (%v); its log is %s", err, s.host.Process("csidriver").Log())
		}
		return nil
	}); err != nil {
		return err
	}
	for i := range count {
		name := fmt.Sprintf("%s-%d", s.host.Name, i)
		handle, err := s.outside.Make(name, 1<<20)
		if err != nil {
			return err
		}
		s.claims = append(s.claims, name)
		if err := s.claim(ctx, name, handle); err != nil {
			return err
		}
	}
	return s.bound(ctx)
}

// claim creates a PersistentVolume and its claim.
func (s *storage) claim(ctx context.Context, name, handle string) error {
	pv, claim := csiObjects(name, handle)
	if _, err := s.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); unlessThere(err) != nil {
		return err
	}
	_, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, claim, metav1.CreateOptions{})
	return unlessThere(err)
}

// csiObjects are a PersistentVolume of the driver and the claim that it is for.
func csiObjects(name, handle string) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	labels := map[string]string{benchLabel: "csi"}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name, Labels: labels}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
		ClaimRef:               &v1.ObjectReference{Namespace: namespace, Name: name},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: lab.CSIDriverName, VolumeHandle: handle}},
	}}
	return pv, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels}, Spec: v1.PersistentVolumeClaimSpec{
		VolumeName: pv.Name, StorageClassName: ptr.To(""), AccessModes: modes, Resources: v1.VolumeResourceRequirements{Requests: size},
	}}
}

// bound waits until all claims are bound: kubelets wait for that too.
func (s *storage) bound(ctx context.Context) error {
	return soon(ctx, "claims of "+s.host.Name, 500*time.Millisecond, func(ctx context.Context) error {
		list, err := s.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		n := 0
		for _, claim := range list.Items {
			if claim.Status.Phase == v1.ClaimBound && slices.Contains(s.claims, claim.Name) {
				n++
			}
		}
		if n < len(s.claims) {
			return fmt.Errorf("%d of %d are bound", n, len(s.claims))
		}
		return nil
	})
}

// stop stops the driver and removes what it has.
func (s *storage) stop(ctx context.Context) error {
	s.host.CSIDriver = false
	errs := []error{s.host.Process("csidriver").Stop(ctx)}
	for _, path := range []string{s.host.CSIRegistration(), s.host.CSISocket(), s.host.CSIData()} { // a killed driver leaves its sockets
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}

// down removes the pods, while the driver still serves them, the volumes and the driver.
func (s *storage) down(ctx context.Context) error {
	_, err := s.pods.remove(ctx)
	if err == nil {
		err = s.unstaged(ctx)
	}
	// All at the same time: the client's rate allows only some requests in a second.
	all := metav1.ListOptions{LabelSelector: benchLabel}
	return errors.Join(err, s.client.CoreV1().PersistentVolumeClaims(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		s.client.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, all), s.stop(ctx))
}

// unstaged waits until the driver has no volume on the node. Upstream's kubelet unstages after the pod is gone.
func (s *storage) unstaged(ctx context.Context) error {
	return soon(ctx, "volumes of "+s.host.Name, 20*time.Millisecond, func(context.Context) error {
		lines, err := s.outside.Calls()
		if err != nil {
			return err
		}
		if _, left := csidriver.Order(lines); len(left) > 0 {
			return fmt.Errorf("%d are left, as %s", len(left), left[0])
		}
		return nil
	})
}

// give makes the next pods of a run have claims, per each.
func (s *storage) give(prefix string, pods, per int) {
	s.pods.claims = claimsOf(s.claims, pods, per, func(i int) string { return s.pods.name(prefix, i) })
}

// claimsOf deals claims out to pods, per each.
func claimsOf(claims []string, pods, per int, name func(i int) string) map[string][]string {
	of := map[string][]string{}
	for i := range pods {
		of[name(i)] = claims[i*per : (i+1)*per]
	}
	return of
}

// csiRounds is how often the sides take turns.
const csiRounds = 3

// csiTimes are the results of bursts, in milliseconds.
type csiTimes struct {
	ready                    crowd
	cpu, gone, unstaged, end durations
	calls                    float64 // of the driver, for each pod
}

// csiBursts measures pods with a volume each. The sides take turns several times; the median is reported.
func (b *bench) csiBursts(ctx context.Context, sides map[*agent]*storage) error {
	times := map[*agent]*csiTimes{b.upstream: {}, b.ours: {}}
	for i := range csiRounds {
		for _, agent := range b.agents() {
			if err := sides[agent].burst(ctx, fmt.Sprintf("csi-%d", i), times[agent]); err != nil {
				return err
			}
		}
	}
	at := func(name, unit string, of func(*csiTimes) float64) {
		row(fmt.Sprintf("%d with a CSI volume, %s", burstSize, name), unit, 0, of(times[b.upstream]), of(times[b.ours]))
	}
	at("Ready p50", ms, func(t *csiTimes) float64 { return t.ready.p50.at(0.5) })
	at("all Ready", ms, func(t *csiTimes) float64 { return t.ready.all.at(0.5) })
	at("CPU", ms, func(t *csiTimes) float64 { return t.cpu.at(0.5) })
	at("all gone", ms, func(t *csiTimes) float64 { return t.gone.at(0.5) })
	at("all unstaged", ms, func(t *csiTimes) float64 { return t.unstaged.at(0.5) })
	at("CPU for that", ms, func(t *csiTimes) float64 { return t.end.at(0.5) })
	at("calls per pod", "%.1f", func(t *csiTimes) float64 { return t.calls })
	return nil
}

// burst measures pods from their creation until the driver has nothing of them.
func (s *storage) burst(ctx context.Context, prefix string, into *csiTimes) error {
	s.give(prefix, burstSize, 1)
	calls, err := s.nodeCalls()
	if err != nil {
		return err
	}
	ready, used, err := s.agent.burst(ctx, prefix)
	if err != nil {
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	begin := time.Now()
	gone, err := s.pods.remove(ctx)
	if err != nil {
		return err
	}
	if err := s.unstaged(ctx); err != nil {
		return err
	}
	unstaged := inMS(time.Since(begin))
	after, err := s.cpu()
	if err != nil {
		return err
	}
	now, err := s.nodeCalls()
	into.ready.add(ready)
	into.cpu, into.gone, into.unstaged, into.end = append(into.cpu, used), append(into.gone, gone), append(into.unstaged, unstaged), append(into.end, inMS(after-before))
	into.calls = float64(now-calls) / burstSize
	return err
}

// nodeCalls is how many calls the driver's node service has received.
func (s *storage) nodeCalls() (int, error) {
	lines, err := s.outside.Calls()
	return nodeCalls(lines), err
}

func nodeCalls(lines []string) (n int) {
	for _, line := range lines {
		if strings.HasPrefix(line, "begin Node") {
			n++
		}
	}
	return n
}

// csiRestart measures how long our kubelet takes after a kill until it reports the driver's figures of many volumes again. Upstream's kubelet
// measures volumes once a minute and is left out.
func (b *bench) csiRestart(ctx context.Context, s *storage) error {
	pods := manyVolumes / volumesPerPod
	s.give("many", pods, volumesPerPod)
	if _, err := s.pods.run(ctx, "many", pods, false); err != nil {
		return err
	}
	if err := s.known(ctx); err != nil {
		return err
	}
	kubelet := s.host.Process("kubelet")
	if err := kubelet.Kill9(ctx); err != nil {
		return err
	}
	calls, err := s.nodeCalls()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := kubelet.Start(ctx); err != nil {
		return err
	}
	if err := s.known(ctx); err != nil {
		return err
	}
	took := inMS(time.Since(begin))
	used, err := s.cpu() // since its start
	if err != nil {
		return err
	}
	now, err := s.nodeCalls()
	row(fmt.Sprintf("kubelet restarted, %d volumes known", manyVolumes), ms, 0, 0, took)
	row("  CPU by then", ms, 0, 0, inMS(used))
	row("  calls of the driver by then", "%.0f", 0, 0, float64(now-calls))
	return err
}

// known waits until the kubelet reports figures of all claims.
func (s *storage) known(ctx context.Context) error {
	return soon(ctx, "figures of volumes", 100*time.Millisecond, func(ctx context.Context) error {
		answer, err := s.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", s.host.Name, "proxy/stats/summary").DoRaw(ctx)
		if err != nil {
			return err
		}
		n, err := measured(answer, s.claims)
		if err == nil && n < len(s.claims) {
			err = fmt.Errorf("%d of %d", n, len(s.claims))
		}
		return err
	})
}

// driverInodes is what the driver reports of every volume, and no file system does.
const driverInodes = 1 << 20

// measured is how many of the claims a summary has with the driver's figures.
func measured(answer []byte, claims []string) (n int, err error) {
	var all summary.Summary
	if err := json.Unmarshal(answer, &all); err != nil {
		return 0, err
	}
	for _, pod := range all.Pods {
		for _, volume := range pod.VolumeStats {
			if volume.PVCRef != nil && volume.PVCRef.Namespace == namespace && slices.Contains(claims, volume.PVCRef.Name) && volume.Inodes != nil && *volume.Inodes == driverInodes {
				n++
			}
		}
	}
	return n, nil
}
