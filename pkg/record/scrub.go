package record

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Redacted replaces a secret.
const Redacted = "REDACTED"

// Scrubber removes private data from a recording. Secrets become Redacted. Names and addresses become pseudonyms, the same one everywhere, using a
// key that is never written. Data that the recording itself created stays readable.
type Scrubber struct {
	key   []byte
	own   []string          // names to keep
	names map[string]string // name to pseudonym; these are replaced inside texts, too
	label map[string]string // the same for names and values of labels, many of which are ordinary words
	kinds map[string]int    // number of pseudonyms, by kind
	plain func(string) bool // says which addresses to keep
}

// NewScrubber returns a Scrubber. hostname becomes "host". It keeps names that contain one of own, and addresses for which plain is true.
func NewScrubber(hostname string, own []string, plain func(addr string) bool) *Scrubber {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	s := &Scrubber{key: key, own: own, names: map[string]string{}, label: map[string]string{}, kinds: map[string]int{}, plain: plain}
	if first, _, _ := strings.Cut(hostname, "."); len(first) >= shortest {
		s.names[hostname], s.names[first] = "host", "host"
	}
	return s
}

// shortest is the minimum length in bytes of names that are replaced inside texts: a shorter one would match parts of other words.
const shortest = 4

// secret are the keys, in lower case, whose values are or may be secrets.
var secret = set("env", "httpproxy", "httpsproxy", "noproxy", "registryconfig", "swarm", "auth", "authconfig", "identitytoken", "registrytoken", "password",
	"credentialspec", "credentialspecs", "securityopt", "secrets", "configs", "cmsplugins", "domainjoinconfig", "activedirectoryconfig", "cmd", "entrypoint", "args",
	"command", "healthcheck", "driveropts", "warnings", "logconfig", "graphdriver", "hostspath", "hostnamepath", "resolvconfpath", "extrahosts", "links",
	"onbuild", "author", "comment", "history", "dependson", "binds", "mounts", "volumes", "workingdir", "user", "domainname", "localnodestate", "remotemanagers",
	"machineid", "hardwareconfig", "lastconfig", "path", "sandboxkey", "execids", "logpath")

// Secret says whether a recording redacts the values of a field of that name.
func Secret(field string) bool { return secret[strings.ToLower(field)] }

// named are the keys whose values are foreign names, with the kind of their pseudonyms.
var named = map[string]string{"name": "name", "names": "name", "image": "image", "repotags": "image", "repodigests": "image", "dnssuffix": "domain", "dnsdomain": "domain",
	"search": "domain", "searches": "domain", "dnssearch": "domain", "virtualnetworkname": "name", "networkadaptername": "adapter", "interfacedescription": "adapter", "alias": "adapter",
	"description": "adapter", "nicfriendlyname": "adapter", "hostname": "host", "registeredowner": "owner", "registeredorganization": "owner", "aliases": "name", "dnsnames": "name"}

// listed are the keys whose objects are labels: foreign names with their values.
var listed = set("labels", "annotations")

const labelled = "label"

// grouped is the annotation by which a container joins the shim of its sandbox, with the sandbox's id.
var grouped = regexp.MustCompile(`^{"io\.containerd\.runc\.v2\.group":"[0-9a-f]{64}"}$`)

// ours says whether labels are of an object that the recording created: their values show the request.
func (s *Scrubber) ours(labels json.RawMessage) bool {
	return grouped.Match(labels) || bytes.Contains(labels, []byte(`"io.winkube.node"`)) && slices.ContainsFunc(s.own, func(own string) bool { return own != "" && bytes.Contains(labels, []byte(own)) })
}

func set(list ...string) map[string]bool {
	out := map[string]bool{}
	for _, one := range list {
		out[one] = true
	}
	return out
}

// common are names that every host has.
var common = regexp.MustCompile(`^(|<none>.*|sha256:[0-9a-f]{64}|nat|none|host|bridge|internal|ics|Default Switch|Ethernet( \d+)?|Loopback.*|Microsoft .*|Hyper-V Virtual .*|HNS Internal NIC|HNSTransparent|Windows Server .*|` +
	`windowsfilter|overlay2|.*\bWan Miniport.*|WAN Miniport.*|lo|eth\d+|docker\d+|veth.*|Software Loopback.*|(io\.)?winkube.*|(annotation\.)?io\.kubernetes\..*|com\.docker\..*|Container NIC [0-9a-f]*|pod|default|Ethernet Endpoint.*)$`)

// scrub returns rec without secrets. It first collects all names, since they also occur inside texts.
func (s *Scrubber) scrub(rec Recording) Recording {
	for _, e := range rec.Exchanges {
		for _, raw := range slices.Concat(e.In, e.Out) {
			s.gather(raw)
		}
	}
	out := Recording{Header: rec.Header}
	h := &out.Header
	h.Image = s.name("image", h.Image)
	h.NodeIPs, h.Failed, h.Missing = s.texts(h.NodeIPs), s.texts(h.Failed), s.texts(h.Missing)
	for _, e := range rec.Exchanges {
		e.Call, e.Error = s.text(e.Call), s.text(e.Error)
		e.In, e.Out = s.values(e.In), s.values(e.Out)
		out.Exchanges = append(out.Exchanges, e)
	}
	return out
}

func (s *Scrubber) texts(in []string) (out []string) {
	for _, one := range in {
		out = append(out, s.text(one))
	}
	return out
}

func (s *Scrubber) values(in []json.RawMessage) (out []json.RawMessage) {
	for _, raw := range in {
		out = append(out, s.value(raw))
	}
	return out
}

// gather collects the foreign names in a document.
func (s *Scrubber) gather(raw json.RawMessage) {
	_ = s.rewrite(raw, io.Discard, func(keys []string, text string) (string, bool) {
		embedded(text, func(document json.RawMessage) json.RawMessage {
			s.gather(document)
			return document
		})
		if kind := nameKind(keys); kind != "" {
			s.name(kind, text)
		}
		return text, true
	})
}

// nameKind is the kind of name of a value below keys; "": none.
func nameKind(keys []string) string {
	for i, key := range keys {
		if listed[strings.ToLower(key)] && i < len(keys)-1 {
			return labelled
		}
	}
	for _, key := range slices.Backward(keys) {
		if key != "" { // elements of a list have the list's key
			return named[strings.ToLower(key)]
		}
	}
	return ""
}

// name is the pseudonym of a foreign name.
func (s *Scrubber) name(kind, text string) string {
	text = strings.TrimPrefix(text, "/")
	if inner, ok := strings.CutPrefix(text, "vEthernet ("); ok { // the host's adapter on a switch is named after the network
		return "vEthernet (" + s.name(kind, strings.TrimSuffix(inner, ")")) + ")"
	}
	if common.MatchString(text) || slices.ContainsFunc(s.own, func(own string) bool { return own != "" && strings.Contains(text, own) }) {
		return text
	}
	names := s.names
	if kind == labelled {
		names = s.label
	}
	if known := names[text]; known != "" {
		return known
	}
	s.kinds[kind]++
	names[text] = fmt.Sprintf("%s-%d", kind, s.kinds[kind])
	return names[text]
}

// value returns a document without secrets, with its fields in order.
func (s *Scrubber) value(raw json.RawMessage) json.RawMessage {
	var out bytes.Buffer
	err := s.rewrite(raw, &out, func(keys []string, text string) (string, bool) {
		for _, key := range keys {
			if Secret(key) {
				return Redacted, false
			}
		}
		if kind := nameKind(keys); kind != "" {
			return s.text(s.name(kind, text)), true
		}
		return s.text(text), true
	})
	if err != nil {
		return encode(Redacted)
	}
	return out.Bytes()
}

// secrets match secrets anywhere in a text.
var secrets = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)|(?i:bearer|basic) +[A-Za-z0-9._~+/=-]{8,}|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*\.?[A-Za-z0-9_-]*|` +
	`\b[a-z0-9]{6}\.[a-z0-9]{16}\b|(?i:credentialspec=)[^\s"]+|//[^/\s:@]+:[^/\s@]+@|(?i:(password|passwd|pwd|secret|token|apikey|api_key|accountkey|sharedaccesskey)\s*[=:]\s*)[^\s"&;,]+`)

var profiles = regexp.MustCompile(`(?i)(C:\\+Users\\+)([^\\"]+)`)

// embedded replaces the JSON documents inside a text, as many errors contain.
func embedded(text string, by func(json.RawMessage) json.RawMessage) string {
	var out strings.Builder
	for {
		at := strings.IndexAny(text, "{[")
		if at < 0 {
			return out.String() + text
		}
		out.WriteString(text[:at])
		text = text[at:]
		var document json.RawMessage
		decoder := json.NewDecoder(strings.NewReader(text))
		if decoder.Decode(&document) != nil {
			out.WriteByte(text[0])
			text = text[1:]
			continue
		}
		out.Write(by(document))
		text = text[decoder.InputOffset():]
	}
}

// text returns a string without secrets, foreign names and addresses.
func (s *Scrubber) text(text string) string {
	text = embedded(text, s.value)
	text = secrets.ReplaceAllString(text, Redacted)
	text = profiles.ReplaceAllString(text, "${1}user")
	for _, name := range s.longestFirst() {
		if len(name) >= shortest && strings.Contains(strings.ToLower(text), strings.ToLower(name)) {
			text = replaceAlone(regexp.MustCompile(`(?i)`+regexp.QuoteMeta(name)), text, wordy, func(string) string { return s.names[name] })
		}
	}
	return s.addresses(text)
}

func (s *Scrubber) longestFirst() []string {
	return slices.SortedFunc(maps.Keys(s.names), func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
}

// digest is a hash of text that requires the key.
func (s *Scrubber) digest(text string) []byte {
	mac := hmac.New(sha256.New, s.key)
	_, _ = io.WriteString(mac, text) // never fails
	return mac.Sum(nil)
}
