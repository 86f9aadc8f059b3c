package hns

import (
	"errors"
	"testing"

	"github.com/Microsoft/hcsshim/hcn"
)

func TestListed(t *testing.T) {
	other := errors.New("access denied")
	for name, test := range map[string]struct {
		fails []error
		calls int
		want  error
	}{
		"the first time":      {nil, 1, nil},
		"a member is removed": {[]error{hcn.EndpointNotFoundError{EndpointID: "a"}, hcn.EndpointNotFoundError{EndpointID: "b"}}, 3, nil},
		"another error":       {[]error{other}, 1, other},
	} {
		calls := 0
		list, err := listed(func() ([]int, error) {
			calls++
			if calls <= len(test.fails) {
				return nil, test.fails[calls-1]
			}
			return []int{7}, nil
		})
		if !errors.Is(err, test.want) || calls != test.calls || (err == nil) != (len(list) == 1) {
			t.Errorf("%s: %v, %v after %d calls", name, list, err, calls)
		}
	}
}
