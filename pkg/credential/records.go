package credential

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

// Policy says for which local images a pod needs credentials that were verified for the image (kubelet field
// imagePullCredentialsVerificationPolicy).
type Policy string

const (
	NeverVerify          Policy = "NeverVerify"
	NeverVerifyPreloaded Policy = "NeverVerifyPreloadedImages" // verify all that this agent has pulled; upstream's default
	NeverVerifyAllowed   Policy = "NeverVerifyAllowlistedImages"
	AlwaysVerify         Policy = "AlwaysVerify"
)

// Records implements pod.PullRecords with one file per pulled image, in upstream's naming and format, so that a node can switch between the
// agents. An unreadable record counts as one without credentials: the next user must ask the registry.
type Records struct {
	policy  Policy
	allowed []string
	dir     string
	now     func() time.Time

	mu      sync.Mutex // for the files
	intents map[string]int
}

var _ pod.PullRecords = (*Records)(nil)

// maxSecrets limits the secrets in a record that are added for pods that may already use the image.
const maxSecrets = 100

// record is upstream's ImagePulledRecord of kubelet.config.k8s.io/v1beta1.
type record struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Updated    time.Time         `json:"lastUpdatedTime"`
	Image      string            `json:"imageRef"`
	Mapping    map[string]access `json:"credentialMapping,omitempty"` // by name without tag or digest
}

// access is whose credentials were verified. With Node, pods need none.
type access struct {
	Secrets  []secret  `json:"kubernetesSecrets,omitempty"`
	Accounts []account `json:"kubernetesServiceAccounts,omitempty"`
	Node     bool      `json:"nodePodsAccessible,omitempty"`
}

type account struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type secret struct {
	account
	Hash string `json:"credentialHash"`
}

type intent struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Image      string `json:"image"`
}

const recordVersion = "kubelet.config.k8s.io/v1beta1"

// NewRecords returns Records in the directory image_manager of root. allowed are the images of NeverVerifyAllowed: names without tag, or
// prefixes that end in /*.
func NewRecords(root string, policy Policy, allowed []string) (*Records, error) {
	switch policy {
	case NeverVerify, NeverVerifyPreloaded, NeverVerifyAllowed, AlwaysVerify:
	default:
		return nil, fmt.Errorf("image pull credentials verification policy %q: want %s, %s, %s or %s", policy, NeverVerifyPreloaded, NeverVerify, NeverVerifyAllowed, AlwaysVerify)
	}
	if (policy == NeverVerifyAllowed) != (len(allowed) > 0) {
		return nil, fmt.Errorf("image pull credentials verification policy %s with %d allowed images: want allowed images with %s only", policy, len(allowed), NeverVerifyAllowed)
	}
	r := &Records{policy: policy, dir: filepath.Join(root, "image_manager"), now: time.Now, intents: map[string]int{}}
	for _, pattern := range allowed {
		name, prefix := strings.CutSuffix(pattern, "/*")
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil || !reference.IsNameOnly(named) {
			return nil, fmt.Errorf("allowed image %q: want a name without tag, or a prefix of one followed by /*", pattern)
		}
		if prefix {
			name += "/"
		}
		r.allowed = append(r.allowed, name)
	}
	return r, nil
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (r *Records) intentFile(name string) string {
	return filepath.Join(r.dir, "pulling", "sha256-"+hash(name))
}

func (r *Records) recordFile(img pod.Image) string {
	return filepath.Join(r.dir, "pulled", "sha256-"+hash(img.ID))
}

// Intend implements pod.PullRecords: from now on an image with this name counts as pulled by us, even if the agent dies before Pulled.
func (r *Records) Intend(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := write(r.intentFile(name), intent{recordVersion, "ImagePullIntent", name}); err != nil {
		return fmt.Errorf("cannot note that image %q will be pulled: %w", name, err)
	}
	r.intents[name]++
	return nil
}

// Failed implements pod.PullRecords. After an abandoned pull, the intent stays until the next pull.
func (r *Records) Failed(name string, givenUp bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settle(name, givenUp)
}

// settle requires mu.
func (r *Records) settle(name string, keep bool) {
	if r.intents[name]--; r.intents[name] > 0 {
		return
	}
	delete(r.intents, name)
	if keep {
		return
	}
	if err := os.Remove(r.intentFile(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.ErrorS(err, "Cannot remove the record of an ended pull", "image", name)
	}
}

// Pulled implements pod.PullRecords. If the record cannot be written, the intent stays, so that the image does not count as preloaded.
func (r *Records) Pulled(name string, img pod.Image, cred pod.Credential) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.add(name, img, cred); err != nil {
		klog.ErrorS(err, "Cannot record a pulled image", "image", name)
		return
	}
	r.settle(name, false)
}

// add requires mu.
func (r *Records) add(name string, img pod.Image, cred pod.Credential) error {
	rec, _ := r.load(img)
	if rec.Mapping == nil {
		rec.Mapping = map[string]access{}
	}
	key := repository(name)
	has := rec.Mapping[key]
	grown := has.with(cred)
	if rec.Image != "" && grown.same(has) {
		return nil
	}
	rec.Mapping[key] = grown
	rec.APIVersion, rec.Kind, rec.Image, rec.Updated = recordVersion, "ImagePulledRecord", img.ID, r.now().UTC().Truncate(time.Second)
	return write(r.recordFile(img), rec)
}

func (a access) same(b access) bool {
	return a.Node == b.Node && slices.Equal(a.Secrets, b.Secrets) && slices.Equal(a.Accounts, b.Accounts)
}

// with adds a credential. A secret has only one hash, its latest.
func (a access) with(cred pod.Credential) access {
	who := owner(cred)
	switch {
	case a.Node || cred.Source.Kind == "":
		return access{Node: true}
	case cred.Source.Kind == pod.FromServiceAccount:
		if !slices.Contains(a.Accounts, who) {
			a.Accounts = append(slices.Clone(a.Accounts), who)
		}
	default:
		kept := slices.DeleteFunc(slices.Clone(a.Secrets), func(s secret) bool { return s.account == who })
		a.Secrets = append(kept, secret{who, loginHash(cred)})
		slices.SortFunc(a.Secrets, func(a, b secret) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
	}
	return a
}

func owner(cred pod.Credential) account {
	return account{UID: string(cred.Source.UID), Namespace: cred.Source.Namespace, Name: cred.Source.Name}
}

func loginHash(cred pod.Credential) string {
	data, _ := json.Marshal(cred) // strings always encode; the source is omitted
	return hash(string(data))
}

// Usable implements pod.PullRecords.
func (r *Records) Usable(name string, img pod.Image, creds func() []pod.Credential) bool {
	r.mu.Lock()
	rec, found := r.load(img)
	ours := found || r.intents[name] > 0
	if !ours {
		_, err := os.Stat(r.intentFile(name))
		ours = !errors.Is(err, fs.ErrNotExist)
	}
	r.mu.Unlock()
	if !r.verify(name, ours) {
		return true
	}
	has, ok := rec.Mapping[repository(name)]
	switch {
	case !ok:
		return false
	case has.Node:
		return true
	case len(has.Secrets)+len(has.Accounts) == 0:
		return false
	}
	for _, cred := range creds() {
		known, news := has.covers(cred)
		if !known {
			continue
		}
		if news && len(has.Secrets) < maxSecrets { // the secret was renewed, or another one has the same login: record it too
			r.mu.Lock()
			defer r.mu.Unlock()
			if err := r.add(name, img, cred); err != nil {
				klog.ErrorS(err, "Cannot record who may use an image", "image", name)
			}
		}
		return true
	}
	return false
}

// covers reports whether cred was verified: the same login, or the same secret even with another login, or the same service account. news
// means that the record does not have it in exactly this form.
func (a access) covers(cred pod.Credential) (known, news bool) {
	who := owner(cred)
	switch cred.Source.Kind {
	case pod.FromServiceAccount:
		return slices.Contains(a.Accounts, who), false
	case pod.FromSecret:
		login := loginHash(cred)
		if slices.Contains(a.Secrets, secret{who, login}) {
			return true, false
		}
		known = slices.ContainsFunc(a.Secrets, func(s secret) bool { return s.Hash == login || s.account == who })
		return known, known
	}
	return false, false
}

// verify reports whether a pod must present credentials. ours means that this agent, or an earlier one, pulled the image.
func (r *Records) verify(name string, ours bool) bool {
	switch r.policy {
	case NeverVerify:
		return false
	case NeverVerifyPreloaded:
		return ours
	case NeverVerifyAllowed:
		bare := repository(name)
		return !slices.ContainsFunc(r.allowed, func(allowed string) bool {
			return bare == allowed || strings.HasSuffix(allowed, "/") && strings.HasPrefix(bare, allowed)
		})
	}
	return true
}

// repository is name without tag and digest, otherwise unchanged.
func repository(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// load requires mu. found means that there is a record, even if it is unreadable.
func (r *Records) load(img pod.Image) (rec record, found bool) {
	data, err := os.ReadFile(r.recordFile(img))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, false
	}
	if err == nil {
		err = json.Unmarshal(data, &rec)
	}
	if err != nil || rec.Image != img.ID {
		klog.InfoS("Cannot use the record of a pulled image; pods must prove their credentials at the registry again", "image", img.ID, "err", err)
		return record{}, true
	}
	return rec, true
}

// Prune removes the records of images that are not in present (engine ids), except those written after since.
func (r *Records) Prune(present []string, since time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep := map[string]bool{}
	for _, id := range present {
		keep[filepath.Base(r.recordFile(pod.Image{ID: id}))] = true
	}
	dir := filepath.Join(r.dir, "pulled")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot list the records of pulled images: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || keep[entry.Name()] || !info.ModTime().Before(since) {
			continue
		}
		errs = append(errs, os.Remove(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// write writes a file atomically that only its owner may read.
func write(file string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	temporary := file + ".tmp"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, file)
}
