package accounts_test

import (
	"testing"

	"github.com/winkube/winkube/pkg/docker/accounts"
	"github.com/winkube/winkube/pkg/docker/identity"
)

const testPasswd = `root:x:0:0:root:/root:/bin/sh
# a comment

broken:x
app:x:1000:1000::/home/app:/bin/sh
big:x:99999999999:1::/:/bin/sh
`

const testGroup = `root:x:0:
adm:x:4:root,app
app:x:1000:
extra:x:50000:app
`

func TestIdentify(t *testing.T) {
	known := accounts.Parse(testPasswd, testGroup)
	for spec, want := range map[string]string{
		"": "0:0:4", "root": "0:0:4", "0": "0:0:4", "app": "1000:1000:4,50000", "1000": "1000:1000:4,50000", "app:extra": "1000:50000:4,50000",
		"1000:7": "1000:7:4,50000", "77": "77:0:", "77:app": "77:1000:", "ghost": "?", "app:nogroup": "?",
	} {
		id, ok := known.Identify(spec)
		got := "?"
		if ok {
			got = identity.FormatUser(&id)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", spec, got, want)
		}
	}
}
