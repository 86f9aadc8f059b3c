package stats

import (
	"cmp"
	"compress/gzip"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// family is a metric with all its samples.
type family struct {
	name, help string
	kind       dto.MetricType
}

func counterOf(name, help string) *family { return &family{name, help, dto.MetricType_COUNTER} }

func gaugeOf(name, help string) *family { return &family{name, help, dto.MetricType_GAUGE} }

// label is a name and a value, as the encoders need them.
type label = *dto.LabelPair

// labelsOf returns labels from alternating names and values; the names must be sorted.
func labelsOf(namesAndValues ...string) []label {
	pairs := make([]dto.LabelPair, len(namesAndValues)/2)
	out := make([]label, len(pairs))
	for i := range pairs {
		pairs[i].Name, pairs[i].Value = &namesAndValues[2*i], &namesAndValues[2*i+1]
		out[i] = &pairs[i]
	}
	return out
}

// with returns labels with one more, in order. It shares the labels themselves.
func with(labels []label, name, value string) []label {
	i, _ := slices.BinarySearchFunc(labels, name, func(l label, name string) int { return cmp.Compare(*l.Name, name) })
	return slices.Concat(labels[:i], []label{{Name: &name, Value: &value}}, labels[i:])
}

// page is the answer to one scrape, a prometheus.Gatherer. A registry would copy, check and hash each of thousands of samples. Here labels are
// created once for each container, and the senders ensure that no two samples are the same.
type page struct {
	at       *int64 // time of the measurement, in milliseconds since 1970
	families map[*family]*dto.MetricFamily
}

func newPage(at time.Time) *page {
	milliseconds := at.UnixMilli()
	return &page{at: &milliseconds, families: map[*family]*dto.MetricFamily{}}
}

// sample is a sample with all values that it points to.
type sample struct {
	metric  dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

// send adds a sample with the time of the page's measurement.
func (p *page) send(f *family, value float64, labels []label) {
	p.sendTimeless(f, value, labels).TimestampMs = p.at
}

// sendTimeless adds a sample without a time, which means the time of the scrape.
func (p *page) sendTimeless(f *family, value float64, labels []label) *dto.Metric {
	into := p.families[f]
	if into == nil {
		into = &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: &f.kind}
		p.families[f] = into
	}
	s := &sample{value: value}
	s.metric.Label = labels
	if f.kind == dto.MetricType_COUNTER {
		s.counter.Value, s.metric.Counter = &s.value, &s.counter
	} else {
		s.gauge.Value, s.metric.Gauge = &s.value, &s.gauge
	}
	into.Metric = append(into.Metric, &s.metric)
	return &s.metric
}

// Gather implements prometheus.Gatherer.
func (p *page) Gather() ([]*dto.MetricFamily, error) {
	all := make([]*dto.MetricFamily, 0, len(p.families))
	for _, f := range p.families {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return cmp.Compare(*a.Name, *b.Name) })
	return all, nil
}

// servePages answers each request with a page from make.
func servePages(make func(*http.Request) *page) http.Handler {
	return compressed(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		promhttp.HandlerFor(prometheus.Gatherer(make(r)), promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r)
	}))
}

// compressors use the fastest level: samples are so similar that better compression costs the node more than it saves on the network.
var compressors = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // fails only for invalid levels
	return z
}}

// compressed compresses answers for clients that accept gzip.
func compressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !acceptsGzip(r.Header.Get("Accept-Encoding")) {
			next.ServeHTTP(w, r)
			return
		}
		z := compressors.Get().(*gzip.Writer)
		defer compressors.Put(z)
		z.Reset(w)
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		next.ServeHTTP(compressedWriter{w, z}, r)
		_ = z.Close() // fails if the client has disconnected
	})
}

// acceptsGzip parses Accept-Encoding (RFC 9110, 12.5.3) for gzip.
func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		coding, weight, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			q := strings.TrimPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
			return q == weight || strings.Trim(q, "0.") != ""
		}
	}
	return false
}

type compressedWriter struct {
	http.ResponseWriter
	io.Writer
}

// Write writes to the compressor.
func (w compressedWriter) Write(p []byte) (int, error) { return w.Writer.Write(p) }
