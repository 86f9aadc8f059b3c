package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/registry"
)

// imageStage is a node whose kubelet pulls at most two images in parallel and uses a credential plugin for one
// registry.
type imageStage struct {
	*space
	node          *lab.Host
	tokens, basic *imageRegistry
}

// pluginLog is the file in which the plugin records its calls.
func (s *imageStage) pluginLog() string { return s.node.Dir("plugin.log") }

// TestImages pulls images in all common ways: with correct, wrong and no secrets, through a credential provider plugin,
// from a registry that is not ready, several in parallel, and again after their removal.
func TestImages(t *testing.T) {
	node := cluster.Nodes[1]
	s := &imageStage{space: newSpace(t), node: node, tokens: newRegistry(t, node, 5998, registry.Token), basic: newRegistry(t, node, 5997, registry.Basic)}
	s.withPlugin()
	for _, test := range []struct {
		name string
		run  func(s *imageStage)
	}{
		{"Secret", (*imageStage).secret}, {"WrongSecretFirst", (*imageStage).wrongFirst}, {"ServiceAccount", (*imageStage).serviceAccount},
		{"NoSecret", (*imageStage).noSecret}, {"Plugin", (*imageStage).plugin}, {"Parallel", (*imageStage).parallel},
		{"BackOff", (*imageStage).backOff}, {"Removed", (*imageStage).removed}, {"Deleted", (*imageStage).deleted},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(&imageStage{space: &space{T: t, name: s.name}, node: node, tokens: s.tokens, basic: s.basic})
		})
	}
}

// withPlugin restarts the kubelet with this test's flags, and without them when the test ends.
func (s *imageStage) withPlugin() {
	s.Helper()
	dir := s.node.Dir("providers")
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: give-login
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%q]
  defaultCacheDuration: 1h
  env: [{name: WHO, value: robot}]
`, s.basic.addr+"/private/robot")
	answer := fmt.Sprintf(`{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse","cacheKeyType":"Registry","auth":{%q:{"username":"'$WHO'","password":%q}}}`,
		s.basic.addr, registry.Password("robot"))
	script := "#!/bin/sh\ncat >> " + s.pluginLog() + "\necho >> " + s.pluginLog() + "\necho '" + answer + "'\n"
	s.must(errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(config), 0o600),
		os.WriteFile(filepath.Join(dir, "give-login"), []byte(script), 0o700)))
	restart := func(args []string) {
		s.node.ExtraArgs["kubelet"] = args
		s.must(s.node.Process("kubelet").Restart(context.Background()))
		s.nodeReady(s.node.Name, true, 60*time.Second)
	}
	s.Cleanup(func() {
		restart(nil)
		s.must(errors.Join(os.RemoveAll(dir), os.RemoveAll(s.pluginLog())))
	})
	restart([]string{"--image-credential-provider-config=" + filepath.Join(dir, "config.yaml"), "--image-credential-provider-bin-dir=" + dir,
		"--max-parallel-image-pulls=2"})
}

func (s *imageStage) addSecret(name string, kind v1.SecretType, server, user, password string) {
	s.Helper()
	entries := map[string]any{server: map[string]string{"username": user, "password": password}}
	key := v1.DockerConfigKey
	var config any = entries
	if kind == v1.SecretTypeDockerConfigJson {
		key, config = v1.DockerConfigJsonKey, map[string]any{"auths": entries}
	}
	data, err := json.Marshal(config)
	s.must(err)
	_, err = client.CoreV1().Secrets(s.name).Create(s.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind, Data: map[string][]byte{key: data}}, metav1.CreateOptions{})
	s.must(err)
}

// start creates a pod with an image and pull secrets.
func (s *imageStage) start(name, image string, policy v1.PullPolicy, secrets ...string) {
	s.Helper()
	pod := s.pod(name, s.node, "sleep")
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = image, policy
	for _, secret := range secrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: secret})
	}
	s.create(pod)
}

// waits waits until the pod's container waits for a reason and returns the message.
func (s *imageStage) waits(name string, reasons ...string) (message string) {
	s.Helper()
	s.eventually(time.Minute, fmt.Sprintf("pod %s waits with %v", name, reasons), func(context.Context) error {
		statuses := s.get(name).Status.ContainerStatuses
		if len(statuses) == 0 {
			return errors.New("it has no status")
		}
		waiting := statuses[0].State.Waiting
		if waiting == nil || !slices.Contains(reasons, waiting.Reason) {
			return fmt.Errorf("it is %+v", statuses[0].State)
		}
		message = waiting.Message
		return nil
	})
	return message
}

func (s *imageStage) secret() {
	image, digest := s.tokens.add("private/alice/app:1")
	s.addSecret("alice", v1.SecretTypeDockerConfigJson, s.tokens.addr+"/private/alice", "alice", registry.Password("alice"))
	s.start("secret", image, v1.PullIfNotPresent, "alice")
	status := s.ready("secret").Status.ContainerStatuses[0]
	if want := "docker-pullable://" + s.tokens.addr + "/private/alice/app@" + digest; status.ImageID != want {
		s.Errorf("imageID %s, want %s", status.ImageID, want)
	}
	s.told("secret", "Pulling", fmt.Sprintf("Pulling image %q", image))
	s.Log(s.told("secret", "Pulled", fmt.Sprintf("Successfully pulled image %q in ", image)))
	s.eventually(time.Minute, "the node shows the image", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, s.node.Name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(node.Status.Images, func(i v1.ContainerImage) bool { return slices.Contains(i.Names, image) }) {
			err = fmt.Errorf("%d images, and not this", len(node.Status.Images))
		}
		return err
	})
}

func (s *imageStage) wrongFirst() {
	image, _ := s.basic.add("private/bob/app:1")
	s.addSecret("wrong", v1.SecretTypeDockerConfigJson, s.basic.addr+"/private/bob/app", "bob", "nonsense")
	s.addSecret("bob", v1.SecretTypeDockercfg, s.basic.addr, "bob", registry.Password("bob"))
	s.start("wrong-only", image, v1.PullIfNotPresent, "wrong")
	message := s.waits("wrong-only", "ErrImagePull", "ImagePullBackOff")
	if strings.Contains(message, "nonsense") {
		s.Errorf("the message holds the password: %s", message)
	}
	s.Log(message)
	s.start("wrong-first", image, v1.PullIfNotPresent, "wrong", "bob", "no-such-secret")
	s.ready("wrong-first")
	s.Log(s.told("wrong-first", "FailedToRetrieveImagePullSecret", "no-such-secret"))
}

func (s *imageStage) serviceAccount() {
	image, _ := s.tokens.add("private/carol/app:1")
	s.addSecret("carol", v1.SecretTypeDockerConfigJson, s.tokens.addr, "carol", registry.Password("carol"))
	_, err := client.CoreV1().ServiceAccounts(s.name).Create(s.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "puller"},
		ImagePullSecrets: []v1.LocalObjectReference{{Name: "carol"}}}, metav1.CreateOptions{})
	s.must(err)
	pod := s.pod("account", s.node, "sleep")
	pod.Spec.ServiceAccountName, pod.Spec.Containers[0].Image = "puller", image
	s.create(pod)
	s.ready("account")
}

// noSecret starts pods without the secret whose image is present because another pod pulled it.
func (s *imageStage) noSecret() {
	image := s.tokens.addr + "/private/alice/app:1"
	s.start("stranger", image, v1.PullIfNotPresent)
	s.start("stranger-never", image, v1.PullNever)
	s.start("friend", image, v1.PullNever, "alice")
	s.ready("friend")
	s.told("friend", "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image))
	s.Log(s.waits("stranger", "ErrImagePull", "ImagePullBackOff"))
	s.Log(s.waits("stranger-never", "ErrImageNeverPull"))
}

func (s *imageStage) plugin() {
	for _, name := range []string{"one", "two"} {
		image, _ := s.basic.add("private/robot/" + name + ":1")
		s.start("plugin-"+name, image, v1.PullIfNotPresent)
		s.ready("plugin-" + name)
	}
	data, err := os.ReadFile(s.pluginLog())
	s.must(err)
	if lines := strings.Fields(string(data)); len(lines) != 1 || !strings.Contains(lines[0], s.basic.addr+"/private/robot/one") {
		s.Errorf("the plugin was asked\n%s\nwant once, for the first image: its answer is for the registry", data)
	}
	log, err := os.ReadFile(s.node.Process("kubelet").Log())
	s.must(err)
	for _, user := range []string{"robot", "alice", "bob"} {
		if strings.Contains(string(log), registry.Password(user)) {
			s.Errorf("the kubelet's log holds the password of %s", user)
		}
	}
}

// parallel starts pods with five images, two of them with the same one: at most two pulls run in parallel, and the two
// pods share one.
func (s *imageStage) parallel() {
	release := s.tokens.Hold()
	defer release()
	var names []string
	for i := range 6 {
		name := fmt.Sprintf("many%d", min(i, 4))
		image, _ := s.tokens.add("public/" + name + ":1")
		names = append(names, fmt.Sprintf("%s-%d", name, i))
		s.start(names[i], image, v1.PullAlways)
	}
	for _, name := range names {
		s.told(name, "Pulling", "")
	}
	s.eventually(time.Minute, "two pulls in progress", func(context.Context) error {
		if n := s.tokens.Held(); n != 2 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	begin := time.Now()
	release()
	for _, name := range names {
		s.ready(name)
	}
	if one, two := len(s.tokens.Requests("public/many0:1")), len(s.tokens.Requests("public/many4:1")); one != two {
		s.Errorf("%d requests for an image of two pods, %d for an image of one pod: the first was pulled twice", two, one)
	}
	s.Logf("6 pods of 5 images, 2 pulls at a time: Ready %.1f s after the registry resumed", time.Since(begin).Seconds())
}

// backOff requests an image that is added later.
func (s *imageStage) backOff() {
	name := "public/late:1"
	shown := s.reasons("late") // ErrImagePull stays for a second, which a poll may miss
	s.start("late", s.tokens.addr+"/"+name, v1.PullIfNotPresent)
	message := s.waits("late", "ImagePullBackOff")
	if !shown("ErrImagePull") {
		s.Error("the pod never showed ErrImagePull")
	}
	if want := fmt.Sprintf("Back-off pulling image %q: ErrImagePull: ", s.tokens.addr+"/"+name); !strings.HasPrefix(message, want) {
		s.Errorf("message %q, want %s...", message, want)
	}
	s.told("late", "BackOff", "Back-off pulling image")
	s.tokens.add(name)
	s.ready("late")
	times := s.tokens.pulls(name)
	if len(times) < 2 {
		s.Errorf("requested at %v, want at least twice", times)
	}
	for i, wait := 1, 10*time.Second; i < len(times); i, wait = i+1, 2*wait {
		if took := times[i].Sub(times[i-1]); took < wait || took >= 2*wait {
			s.Errorf("requested at %v: request %d came after %s, want %s", times, i+1, took, wait)
		}
	}
}

// reasons follows a pod that is created later. The returned function says whether its container has waited for a reason so far.
func (s *imageStage) reasons(pod string) (shown func(reason string) bool) {
	s.Helper()
	var mu sync.Mutex
	seen := map[string]bool{}
	changes, err := client.CoreV1().Pods(s.name).Watch(s.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	s.must(err)
	s.Cleanup(changes.Stop)
	go func() { // it ends with the watch
		for change := range changes.ResultChan() {
			now, ok := change.Object.(*v1.Pod)
			if !ok || len(now.Status.ContainerStatuses) == 0 || now.Status.ContainerStatuses[0].State.Waiting == nil {
				continue
			}
			mu.Lock()
			seen[now.Status.ContainerStatuses[0].State.Waiting.Reason] = true
			mu.Unlock()
		}
	}()
	return func(reason string) bool {
		mu.Lock()
		defer mu.Unlock()
		return seen[reason]
	}
}

// removed removes an image that no container uses any more.
func (s *imageStage) removed() {
	image, _ := s.tokens.add("public/gone:1")
	asks := func(name string, want bool) {
		before := len(s.tokens.Requests("public/gone:1"))
		s.start(name, image, v1.PullIfNotPresent)
		s.ready(name)
		if asked := len(s.tokens.Requests("public/gone:1")) > before; asked != want {
			s.Errorf("%s: the registry was asked: %t, want %t", name, asked, want)
		}
	}
	asks("before", true)
	asks("present", false)
	for _, name := range []string{"before", "present"} {
		s.must(client.CoreV1().Pods(s.name).Delete(s.Context(), name, *metav1.NewDeleteOptions(0)))
	}
	s.eventually(time.Minute, "the image can be removed", func(ctx context.Context) error { return s.node.Engine().RemoveImage(ctx, image) })
	asks("after", true)
}

// deleted deletes a pod during its pull: it does not wait for the registry, and a later pod gets the image.
func (s *imageStage) deleted() {
	release := s.tokens.Hold()
	defer release()
	image, _ := s.tokens.add("public/unwanted:1")
	s.start("unwanted", image, v1.PullIfNotPresent)
	s.eventually(time.Minute, "the pull in progress", func(context.Context) error {
		if n := s.tokens.Held(); n != 1 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	uid := string(s.get("unwanted").UID)
	s.must(client.CoreV1().Pods(s.name).Delete(s.Context(), "unwanted", metav1.DeleteOptions{}))
	took := s.eventually(45*time.Second, "pod unwanted gone", func(ctx context.Context) error { return s.gone(ctx, "unwanted") })
	if n := s.tokens.Held(); n > 1 {
		s.Errorf("%d pulls are in progress, want at most one", n)
	}
	s.eventually(time.Minute, "no traces of it in the engine", func(ctx context.Context) error {
		list, err := s.node.Engine().Containers(ctx)
		if err == nil && slices.ContainsFunc(list, func(c lab.Container) bool { return c.Labels["io.kubernetes.pod.uid"] == uid }) {
			err = errors.New("its containers are there")
		}
		return err
	})
	s.start("wanted", image, v1.PullIfNotPresent)
	release()
	s.ready("wanted")
	s.Logf("deleted while its image was pulled: gone after %.1f s", took.Seconds())
}
