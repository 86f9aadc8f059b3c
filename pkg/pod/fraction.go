package pod

import (
	"math/bits"
	"time"
)

// fraction is part/2^32 of d, which is not negative.
func fraction(d time.Duration, part uint32) time.Duration {
	high, _ := bits.Mul64(uint64(d), uint64(part)<<32)
	return time.Duration(high)
}
