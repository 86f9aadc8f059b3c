package pod

import (
	"fmt"
	"strings"
	"testing"
)

func TestCredentialIsNotPrinted(t *testing.T) {
	c := Credential{Username: "user", Password: "hunter2", Auth: "hunter2", IdentityToken: "hunter2", ServerAddress: "reg.example"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{c, []Credential{c}} {
			if got := fmt.Sprintf(format, v); strings.Contains(got, "hunter2") || !strings.Contains(got, "reg.example") {
				t.Errorf("%s: %s", format, got)
			}
		}
	}
}
