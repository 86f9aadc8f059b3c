package daemon

import (
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/klog/v2"
)

// logJSON makes klog write each entry as one JSON object per line, with the keys of upstream's --logging-format=json: ts (milliseconds since 1970),
// caller, msg, v (except for errors) or err, and the entry's own keys.
func logJSON(w io.Writer) {
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{AddSource: true, Level: slog.Level(math.MinInt), ReplaceAttr: jsonAttr}) // klog filters by verbosity
	klog.SetSlogLogger(slog.New(handler))
}

// jsonAttr renames slog's attributes to upstream's names.
func jsonAttr(_ []string, a slog.Attr) slog.Attr {
	switch value := a.Value.Any().(type) { // one of the entry's keys may have the same name
	case time.Time:
		if a.Key == slog.TimeKey {
			return slog.Float64("ts", float64(value.UnixMicro())/1000)
		}
	case *slog.Source:
		return slog.String("caller", filepath.Base(value.File)+":"+strconv.Itoa(value.Line))
	case slog.Level:
		if value >= slog.LevelError {
			return slog.Attr{}
		}
		return slog.Int("v", int(-value)) // logr's V
	case time.Duration:
		return slog.String(a.Key, value.String())
	}
	return a
}
