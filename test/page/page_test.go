package page

import (
	"fmt"
	"strings"
	"testing"
)

func TestCommands(t *testing.T) {
	const text = "# A page\n\n    make up      # builds\n    make conformance FOCUS='Probing container'    those\n    kubectl get pods\n\nAfter `make && go run ./x up` and `A=1 make b`, not `makes` or\n" +
		"| `NETWORK_MODE=cni go test -run A\\|B` | `hack/x.sh` |\n"
	var got []string
	for _, c := range Commands(text, "make", "go") {
		got = append(got, fmt.Sprintf("%d %v %q %q", c.Line, c.Block, c.Env, c.Argv))
	}
	want := []string{
		`3 true [] ["make" "up"]`, `4 true [] ["make" "conformance" "FOCUS=Probing container"]`, `7 false [] ["make"]`, `7 false [] ["go" "run" "./x" "up"]`,
		`7 false ["A=1"] ["make" "b"]`, `8 false ["NETWORK_MODE=cni"] ["go" "test" "-run" "A|B"]`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
