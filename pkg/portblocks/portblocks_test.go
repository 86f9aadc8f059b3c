package portblocks

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestFree(t *testing.T) {
	for _, c := range []struct {
		excluded string
		free     int
	}{
		{"", 256},
		{"1024-49151", 256},
		{"49152-49215", 255},
		{"49153-49153", 255},                         // one port, one block
		{"50000-50059 5357-5357", 254},               // the 848 ports before contain 13 blocks, those after it 242
		{"49152-65535", 0},                           // loopback DSR used them all on a host without the update (containernetworking/plugins#613)
		{"49152-50175 49664-51199", 224},             // overlapping
		{"65472-65535", 255},                         // the last block
		{"49200-49210 49260-49270 49330-49400", 252}, // gaps of less than a block
	} {
		p := Ports{First: 49152, Count: 16384}
		for text := range strings.FieldsSeq(c.excluded) {
			var r [2]int
			if _, err := fmt.Sscanf(text, "%d-%d", &r[0], &r[1]); err != nil {
				t.Fatal(err)
			}
			p.Excluded = append(p.Excluded, r)
		}
		if got := p.Free(); got != c.free {
			t.Errorf("without %q: %d blocks, want %d", c.excluded, got, c.free)
		}
	}
}

// TestBudget: if the known blocks are used up, the error says what to change; unknown ones are never refused.
func TestBudget(t *testing.T) {
	b := NewBudget(Ports{First: 49152, Count: (Kept + 2) * Size})
	for i, want := range []bool{true, true, false, false} {
		err := b.Take()
		if (err == nil) != want {
			t.Errorf("block %d: %v", i, err)
		}
		if err != nil && (!errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "--enable-dsr") || !strings.Contains(err.Error(), "set dynamicport tcp")) {
			t.Errorf("%v", err)
		}
	}
	var unknown Budget
	for range 1000 {
		if err := unknown.Take(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParse reads English and German Windows, and refuses invalid ranges.
func TestParse(t *testing.T) {
	for _, text := range []string{
		"\r\nProtocol tcp Dynamic Port Range\r\n---------------------------------\r\nStart Port      : 49152\r\nNumber of Ports : 16384\r\n\r\n",
		"\r\nProtokoll tcp Dynamischer Portbereich\r\n---------------------------------\r\nStartport      : 49152\r\nAnzahl von Ports: 16384\r\n\r\n",
	} {
		if p, err := ParseDynamic(text); err != nil || p.First != 49152 || p.Count != 16384 {
			t.Errorf("%+v %v", p, err)
		}
	}
	for _, text := range []string{"", "Access is denied.\r\n", "a: 49152\r\n", "a: 60000\r\nb: 16384\r\n", "a: 0\r\nb: 5\r\n"} {
		if p, err := ParseDynamic(text); err == nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
	got := fmt.Sprint(ParseExcluded("\r\nProtocol tcp Port Exclusion Ranges\r\n\r\nStart Port    End Port\r\n----------    --------\r\n      5357        5357\r\n     50000       50059     *\r\n\r\n* - Administered port exclusions.\r\n 7 3\r\n"))
	if want := "[[5357 5357] [50000 50059]]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func FuzzParseExcluded(f *testing.F) {
	f.Add("10 20")
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range ParseExcluded(text) {
			if e[0] < 1 || e[0] > e[1] || e[1] > 65535 {
				t.Fatal(e)
			}
		}
	})
}
