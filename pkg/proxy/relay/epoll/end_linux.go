package epoll

import (
	"golang.org/x/sys/unix"
)

const (
	// After bulkAfter consecutive reads of at least bulkFrom bytes, a stream counts as bulk.
	bulkAfter = 4
	bulkFrom  = bufferSize / 2
	pipeSize  = 1 << 20
	// spliceSize is the maximum of one call.
	spliceSize = 1 << 20
	// bulkUnsent is how much of a bulk stream may wait unsent in the kernel: enough to keep any link busy, because data
	// in flight does not count, and little enough to still be in the processor's cache when it is sent.
	bulkUnsent = 256 << 10
	// maxPipes is the number of pipes that a loop keeps for reuse.
	maxPipes = 32
)

// end is one of the two sockets of a connection, with the data that waits to be written to it. An idle end uses no
// other memory.
type end struct {
	conn     *conn
	buffer   *[bufferSize]byte // backs pending
	pending  []byte
	pipe     pipe // filled while the other end sends in bulk and this one is blocked
	fd       int32
	small    int8 // consecutive reads below bulk size
	full     int8 // consecutive reads of bulk size
	readable bool // there may be data to read
	blocked  bool // not writable until the kernel reports it
	failed   bool // with an error, which the next read returns
	hungUp   bool // the peer has ended: no more data will arrive
	ended    bool // all data was read
	told     bool // that the other end has ended
	bulk     bool // data from here is spliced
	limited  bool // to bulkUnsent
}

// pipe is where the kernel keeps data on its way from socket to socket.
type pipe struct {
	from, to int32 // descriptors; both 0: no pipe
	n        int   // bytes in it
}

// ready implements handler.
func (e *end) ready(events uint32) {
	e.conn.touch()
	if e.conn.state == connecting {
		e.conn.connected(events)
		return
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.readable = true
		e.hungUp = e.hungUp || events&unix.EPOLLIN != events&^unix.EPOLLOUT
		e.failed = e.failed || events&unix.EPOLLERR != 0
	}
	if events&unix.EPOLLOUT != 0 {
		e.blocked = false
	}
	e.conn.turn()
}

// flush writes pending data until this end is blocked.
func (e *end) flush() unix.Errno {
	for len(e.pending) > 0 && !e.blocked {
		n, errno := send(int(e.fd), e.pending)
		if errno == unix.EAGAIN {
			e.blocked = true
		} else if errno != 0 {
			return errno
		}
		if e.pending = e.pending[n:]; len(e.pending) == 0 {
			buffers.Put(e.buffer)
			e.buffer, e.pending = nil, nil
		}
	}
	for e.pipe.n > 0 && !e.blocked {
		n, errno := splice(int(e.pipe.from), int(e.fd), e.pipe.n)
		if errno == unix.EAGAIN {
			e.blocked = true
		} else if errno != 0 {
			return errno
		}
		if e.pipe.n -= n; e.pipe.n == 0 {
			e.conn.loop.giveBack(e.pipe)
			e.pipe = pipe{}
		}
	}
	return 0
}

// tell reports to this end's peer that the other end has ended.
func (e *end) tell() unix.Errno {
	if e.told {
		return 0
	}
	e.told = true
	_, _, errno := unix.RawSyscall(unix.SYS_SHUTDOWN, uintptr(e.fd), unix.SHUT_WR, 0)
	return errno
}

// shut closes the socket and drops pending data.
func (e *end) shut() {
	if e.fd < 0 {
		return
	}
	e.conn.loop.shut(int(e.fd))
	e.fd = -1
	if e.buffer != nil {
		buffers.Put(e.buffer)
		e.buffer, e.pending = nil, nil
	}
	if e.pipe.n > 0 {
		e.conn.loop.dropPipe(e.pipe)
		e.pipe = pipe{}
	}
}

// copyOnce reads once and writes the data. What the other end does not accept immediately waits in a buffer.
func (n *conn) copyOnce(from, to *end) unix.Errno {
	scratch := n.loop.scratch[:]
	got, errno := receive(int(from.fd), scratch)
	switch {
	case errno == unix.EAGAIN:
		from.readable = false
		return 0
	case errno != 0:
		return errno
	case got == 0:
		from.ended = true
		return 0
	}
	if got < len(scratch) && !from.hungUp {
		from.readable = false // no data left: new data is a new event
	}
	from.count(got)
	if from.bulk && !to.limited {
		to.limited = true
		_ = setOption(int(to.fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bulkUnsent) // without it, it is only slower
	}
	sent, errno := send(int(to.fd), scratch[:got])
	if errno != 0 && errno != unix.EAGAIN {
		return errno
	}
	if sent < got {
		to.buffer = buffers.Get().(*[bufferSize]byte)
		to.pending = to.buffer[:copy(to.buffer[:], scratch[sent:got])]
	}
	return 0
}

// count determines whether this end sends in bulk.
func (e *end) count(n int) {
	if n >= bulkFrom {
		e.full, e.small = min(e.full+1, bulkAfter), 0
	} else {
		e.full, e.small = 0, min(e.small+1, bulkAfter)
	}
	e.bulk = e.full == bulkAfter || e.bulk && e.small < bulkAfter
}

// spliceOnce fills a pipe; flush empties it.
func (n *conn) spliceOnce(from, to *end) unix.Errno {
	p, ok := n.loop.takePipe()
	if !ok {
		from.bulk, from.full = false, 0
		return 0
	}
	got, errno := splice(int(from.fd), int(p.to), spliceSize)
	if errno != 0 || got == 0 {
		n.loop.giveBack(p)
	}
	switch {
	case errno == unix.EAGAIN:
		from.readable = false
	case errno != 0:
		return errno
	case got == 0:
		from.ended = true
	default:
		p.n = got
		to.pipe = p
		from.count(got)
	}
	return 0
}

// takePipe returns an empty pipe.
func (l *loop) takePipe() (pipe, bool) {
	if n := len(l.pipes); n > 0 {
		p := l.pipes[n-1]
		l.pipes = l.pipes[:n-1]
		return p, true
	}
	if !l.ledger.TakePipe() {
		return pipe{}, false
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		l.ledger.DropPipe()
		return pipe{}, false
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // a smaller one works too
	return pipe{from: int32(fds[0]), to: int32(fds[1])}, true
}

// giveBack keeps an empty pipe for reuse.
func (l *loop) giveBack(p pipe) {
	if p.n > 0 || len(l.pipes) >= maxPipes {
		l.dropPipe(p)
		return
	}
	l.pipes = append(l.pipes, p)
}

func (p pipe) close() {
	closeSocket(int(p.from))
	closeSocket(int(p.to))
}
