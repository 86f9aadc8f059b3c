package relay

func newPlane() plane { return goroutines{} }
