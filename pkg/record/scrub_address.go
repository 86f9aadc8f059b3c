package record

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

var (
	macs = regexp.MustCompile(`\b[0-9A-Fa-f]{2}([-:][0-9A-Fa-f]{2}){5}\b`)
	four = regexp.MustCompile(`(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?:/[0-9]{1,2})?`)
	six  = regexp.MustCompile(`(?i)[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:%[0-9a-z]+)?(?:/[0-9]{1,3})?`)
)

// addresses replaces hardware and IP addresses in text. The length of the common prefix of two addresses is preserved, so that ranges still contain
// the same addresses.
func (s *Scrubber) addresses(text string) string {
	text = macs.ReplaceAllStringFunc(text, s.mac)
	text = replaceAlone(four, text, numeric, s.address)
	return replaceAlone(six, text, numeric, s.address)
}

// replaceAlone replaces matches that are not inside a longer word or number; part defines its characters.
func replaceAlone(pattern *regexp.Regexp, text string, part func(byte) bool, by func(string) string) string {
	var out strings.Builder
	last := 0
	for _, at := range pattern.FindAllStringIndex(text, -1) {
		out.WriteString(text[last:at[0]])
		match := text[at[0]:at[1]]
		before := at[0] > 0 && part(text[at[0]-1]) && part(match[0])
		after := at[1] < len(text) && text[at[1]] != '.' && part(text[at[1]]) && part(match[len(match)-1])
		if before || after {
			out.WriteString(match)
		} else {
			out.WriteString(by(match))
		}
		last = at[1]
	}
	return out.String() + text[last:]
}

func wordy(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func numeric(c byte) bool { return c == '.' || wordy(c) }

// mac keeps the vendor's half if Hyper-V or an overlay assigned the address, and the last 12 bits, by which HNS divides its pools.
func (s *Scrubber) mac(text string) string {
	digits := strings.Map(func(r rune) rune {
		if r == '-' || r == ':' {
			return -1
		}
		return r
	}, text)
	n, err := strconv.ParseUint(digits, 16, 48)
	if err != nil || n == 0 || n == 1<<48-1 {
		return text
	}
	from := 8 // a made-up vendor after 02, locally administered
	switch n >> 24 {
	case 0x00155d:
		from = 24
	default:
		if n>>32 == 0x0e2a { // an overlay's, derived from the pod's address
			return text
		}
		n = n&(1<<40-1) | 0x02<<40
	}
	bits := strconv.FormatUint(1<<48|n, 2)[1:]
	mapped := s.flip("mac", bits, from, 36)
	n, _ = strconv.ParseUint(mapped, 2, 48)
	hex := strconv.FormatUint(1<<48|n, 16)[1:]
	if strings.ToUpper(text) == text {
		hex = strings.ToUpper(hex)
	}
	var out strings.Builder
	for i := 0; i < 12; i += 2 {
		if i > 0 {
			out.WriteByte(text[2])
		}
		out.WriteString(hex[i : i+2])
	}
	return out.String()
}

// flip changes the bits from (included) to (excluded), each depending on the bits before it.
func (s *Scrubber) flip(kind, bits string, from, to int) string {
	out := []byte(bits)
	for i := from; i < to; i++ {
		out[i] ^= s.digest(kind + bits[:i])[0] & 1
	}
	return string(out)
}

// kept are the ranges that show an address's purpose; their first bits stay.
var kept = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("fc00::/7")}

// address returns the pseudonym of an address or range; a range keeps its length.
func (s *Scrubber) address(text string) string {
	bare, length, ranged := strings.Cut(text, "/")
	zoneless, zone, _ := strings.Cut(bare, "%")
	addr, err := netip.ParseAddr(zoneless)
	if err != nil || unspeaking(addr) || s.plain != nil && s.plain(zoneless) {
		return text
	}
	to := addr.BitLen()
	if n, err := strconv.Atoi(length); ranged && (err != nil || n > to) {
		return text
	} else if ranged {
		to = n
	}
	if addr.Is4() && to > 24 {
		to = 24 // the host part is seldom a secret, and first and last addresses keep their meaning
	}
	out := netip.PrefixFrom(s.mapped(addr, to), addr.BitLen()).Addr().String()
	if zone != "" {
		out += "%" + zone
	}
	if ranged {
		out += "/" + length
	}
	return out
}

// unspeaking says that an address identifies no one: masks, loopback, multicast, unspecified and documentation addresses.
func unspeaking(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
		return true
	}
	for _, p := range []string{"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "240.0.0.0/4"} {
		if netip.MustParsePrefix(p).Contains(a) {
			return true
		}
	}
	return false
}

// mapped changes the bits up to a length. It first moves a public address to 11.0.0.0/8 or 2001:db8::/32.
func (s *Scrubber) mapped(a netip.Addr, to int) netip.Addr {
	var bits strings.Builder
	for _, b := range a.AsSlice() {
		bits.WriteString(strconv.FormatUint(1<<8|uint64(b), 2)[1:])
	}
	text, from, head := bits.String(), 0, ""
	for _, p := range kept {
		if p.Contains(a) {
			from = p.Bits()
		}
	}
	switch {
	case from > 0:
	case a.Is4():
		from, head = 8, "00001011"
	default:
		from, head = 32, "00100000000000010000110110111000"
	}
	text = s.flip("ip", text, from, to)
	if head != "" {
		text = head + text[len(head):]
	}
	var raw []byte
	for i := 0; i < len(text); i += 8 {
		b, _ := strconv.ParseUint(text[i:i+8], 2, 8)
		raw = append(raw, byte(b))
	}
	out, _ := netip.AddrFromSlice(raw)
	return out
}
