package pod

import (
	"math"
	"math/bits"
	"time"
)

// Seconds is n seconds, at most 68 years either way: the API takes any number, and multiplied or added to the present time a great one would come
// out as little or as something past.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -math.MaxInt32), math.MaxInt32)) * time.Second
}

// fraction is part/2^32 of d, which is not negative.
func fraction(d time.Duration, part uint32) time.Duration {
	high, _ := bits.Mul64(uint64(d), uint64(part)<<32)
	return time.Duration(high)
}
