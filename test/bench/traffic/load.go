//go:build linux

package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Ports of the server and of each front, one per kind of traffic.
const (
	requestPort = 9001 // 256-byte requests, 1 KiB responses, repeatedly
	bulkPort    = 9002 // endless stream from the server
	connectPort = 9003 // 64 bytes in each direction
	packetPort  = 9004 // UDP: 64-byte requests, 128-byte responses
)

const (
	question = 256
	answer   = 1024
	small    = 64
	// bulkBuffer is the size in bytes of one read or write, as in ordinary programs.
	bulkBuffer = 64 << 10
)

// Commands returns the parts that the bench runs as separate processes, by first argument.
func Commands() map[string]func(args []string) error {
	return map[string]func([]string) error{"traffic-server": server, "traffic-naive": naive, "traffic-client": client}
}

// server serves all loads on the address args[0].
func server(args []string) error {
	serve := func(port int, handle func(net.Conn)) error {
		l, err := net.Listen("tcp", net.JoinHostPort(args[0], strconv.Itoa(port)))
		if err != nil {
			return err
		}
		go accept(l, handle)
		return nil
	}
	err := errors.Join(
		serve(requestPort, func(c net.Conn) { echo(c, question, answer) }),
		serve(connectPort, func(c net.Conn) { echo(c, small, small) }),
		serve(bulkPort, func(c net.Conn) {
			chunk := make([]byte, bulkBuffer)
			for {
				if _, err := c.Write(chunk); err != nil {
					return
				}
			}
		}))
	if err != nil {
		return err
	}
	addr, err := net.ResolveUDPAddr("udp", net.JoinHostPort(args[0], strconv.Itoa(packetPort)))
	if err != nil {
		return err
	}
	packets, err := net.ListenUDP("udp", addr)
	if err != nil {
		return err
	}
	ready()
	for range runtime.NumCPU() {
		go answerPackets(packets)
	}
	select {}
}

func answerPackets(packets *net.UDPConn) {
	buffer := make([]byte, 2048)
	for {
		n, from, err := packets.ReadFromUDPAddrPort(buffer)
		if err == nil && n == small {
			_, _ = packets.WriteToUDPAddrPort(buffer[:2*small], from)
		}
	}
}

// ready tells the parent process that all ports are open.
func ready() { fmt.Println("ready") }

func accept(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			continue
		}
		go func() {
			handle(c)
			_ = c.Close()
		}()
	}
}

func echo(c net.Conn, in, out int) {
	asked, answer := make([]byte, in), make([]byte, out)
	for {
		if _, err := io.ReadFull(c, asked); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// naive is the relay of twenty lines: it listens on args[0] and relays to args[1].
func naive(args []string) error {
	for _, port := range []int{requestPort, bulkPort, connectPort} {
		l, err := net.Listen("tcp", net.JoinHostPort(args[0], strconv.Itoa(port)))
		if err != nil {
			return err
		}
		go accept(l, func(c net.Conn) {
			s, err := net.Dial("tcp", net.JoinHostPort(args[1], strconv.Itoa(port)))
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(s, c)
				_ = s.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(c, s)
			_ = s.Close()
		})
	}
	ready()
	select {}
}

// client runs one load and prints its figures as JSON. Arguments: MODE ADDRESS NUMBER.
func client(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("traffic-client: want MODE ADDRESS NUMBER, got %q", args)
	}
	number, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	at := func(port int) string { return net.JoinHostPort(args[1], strconv.Itoa(port)) }
	var figures []float64
	switch args[0] {
	case "bulk":
		figures, err = workers(number, func(stop *atomic.Bool) (int, error) { return receiveBulk(at(bulkPort), stop) })
		for i := range figures {
			figures[i] *= 8
		}
	case "requests":
		figures, err = workers(number, func(stop *atomic.Bool) (int, error) { return keepAlive("tcp", at(requestPort), question, answer, stop) })
	case "connects":
		figures, err = workers(number, func(stop *atomic.Bool) (int, error) { return again(at(connectPort), "tcp", small, small, stop) })
	case "udp":
		figures, err = workers(number, func(stop *atomic.Bool) (int, error) { return keepAlive("udp", at(packetPort), small, 2*small, stop) })
	case "dns":
		figures, err = workers(number, func(stop *atomic.Bool) (int, error) { return again(at(packetPort), "udp", small, 2*small, stop) })
	case "latency":
		figures, err = latency(args[1], number)
	case "hold":
		return holdOpen(at(requestPort), number)
	default:
		err = fmt.Errorf("traffic-client: unknown mode %q", args[0])
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(figures)
}

// workers runs n workers for one round, after a warm-up of a tenth of it, and returns their rates per second.
func workers(n int, work func(stop *atomic.Bool) (int, error)) ([]float64, error) {
	run := func(d time.Duration) (float64, error) {
		var stop atomic.Bool
		var total atomic.Int64
		var group sync.WaitGroup
		errs := make(chan error, n)
		begin := time.Now()
		for range n {
			group.Go(func() {
				count, err := work(&stop)
				total.Add(int64(count))
				errs <- err
			})
		}
		time.AfterFunc(d, func() { stop.Store(true) })
		group.Wait()
		for range n {
			if err := <-errs; err != nil {
				return 0, err
			}
		}
		return float64(total.Load()) / time.Since(begin).Seconds(), nil
	}
	if _, err := run(loadTime - perRound); err != nil {
		return nil, err
	}
	rate, err := run(perRound)
	return []float64{rate}, err
}

func receiveBulk(addr string, stop *atomic.Bool) (int, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	buffer, total := make([]byte, bulkBuffer), 0
	for !stop.Load() {
		n, err := c.Read(buffer)
		if total += n; err != nil {
			return total, err
		}
	}
	return total, nil
}

func keepAlive(network, addr string, out, in int, stop *atomic.Bool) (int, error) {
	c, err := net.Dial(network, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	total, buffer := 0, make([]byte, max(out, in))
	for !stop.Load() {
		if err := exchange(c, network, buffer, out, in); err != nil {
			return total, err
		}
		total++
	}
	return total, nil
}

// again does one exchange on a new connection or, with UDP, from a new port.
func again(addr, network string, out, in int, stop *atomic.Bool) (int, error) {
	total, buffer := 0, make([]byte, max(out, in))
	for !stop.Load() {
		c, err := net.Dial(network, addr)
		if err != nil {
			return total, err
		}
		err = exchange(c, network, buffer, out, in)
		_ = c.Close()
		if err != nil {
			return total, err
		}
		total++
	}
	return total, nil
}

// exchange sends a request and reads the response. If a UDP packet is lost it repeats the request after a while, as a
// resolver does.
func exchange(c net.Conn, network string, buffer []byte, out, in int) error {
	for range 5 {
		if _, err := c.Write(buffer[:out]); err != nil {
			return err
		}
		if network == "tcp" {
			_, err := io.ReadFull(c, buffer[:in])
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err := c.Read(buffer[:in])
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return errors.New("no answer to five packets")
}

const latencyConns = 16

// latency sends rate requests per second on a few connections, each with its own thread, and returns percentiles in
// seconds. Threads and blocking sockets exclude Go's scheduler from the measurement.
func latency(addr string, rate int) ([]float64, error) {
	runtime.GOMAXPROCS(2 * latencyConns)
	period := time.Duration(latencyConns) * time.Second / time.Duration(max(rate, 1))
	to := &unix.SockaddrInet4{Port: requestPort}
	copy(to.Addr[:], net.ParseIP(addr).To4())
	results := make([][]time.Duration, latencyConns)
	errs := make([]error, latencyConns)
	var group sync.WaitGroup
	for i := range latencyConns {
		group.Go(func() { results[i], errs[i] = paced(to, period, period*time.Duration(i)/latencyConns) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := slices.Concat(results...)
	slices.Sort(all)
	at := func(p float64) float64 { return all[int(p*float64(len(all)-1))].Seconds() }
	return []float64{at(0.5), at(0.99)}, nil
}

func paced(to *unix.SockaddrInet4, period, offset time.Duration) ([]time.Duration, error) {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) // 1 us; otherwise wake-ups are late for all sides
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Connect(fd, to), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)); err != nil {
		return nil, err
	}
	buffer := make([]byte, answer)
	begin := time.Now()
	next, end := begin.Add(offset), begin.Add(perRound)
	var took []time.Duration
	for next.Before(end) {
		wait := unix.NsecToTimespec(time.Until(next).Nanoseconds())
		if wait.Sec >= 0 && wait.Nsec > 0 {
			_ = unix.Nanosleep(&wait, nil)
		}
		asked := time.Now()
		if _, err := unix.Write(fd, buffer[:question]); err != nil {
			return nil, err
		}
		for got := 0; got < answer; {
			n, err := unix.Read(fd, buffer)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n == 0 {
				return nil, fmt.Errorf("the connection ended: %w", err)
			}
			got += n
		}
		took = append(took, time.Since(asked))
		if next = next.Add(period); next.Before(time.Now()) {
			next = time.Now() // no burst of requests after a late response
		}
	}
	return took, nil
}

// holdOpen opens n connections, uses each once, and keeps them open until its standard input ends.
func holdOpen(addr string, n int) error {
	buffer := make([]byte, answer)
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := exchange(c, "tcp", buffer, question, answer); err != nil {
			return err
		}
	}
	ready()
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
