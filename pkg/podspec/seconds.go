package podspec

import (
	"math"
	"time"
)

// Seconds is n seconds, at most 68 years either way: the API takes any number, and multiplied or added to the present time a great one would come
// out as little or as something past.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -math.MaxInt32), math.MaxInt32)) * time.Second
}
