//! Cursors over lists of slices against the flat bytes.

use std::io::{IoSlice, IoSliceMut};

use gannet_usermem::{Destination, Fault, Source, UserSlice};

/// Every way to cut ten bytes into three pieces, empty ones included, read and written in every pair of steps.
#[test]
fn three_pieces_in_two_steps() {
    let flat: Vec<u8> = (1..=10).collect();
    for first in 0..=10 {
        for second in first..=10 {
            let pieces =
                [IoSlice::new(&flat[..first]), IoSlice::new(&flat[first..second]), IoSlice::new(&flat[second..])];
            for step in 0..=10 {
                let mut source = Source::from_io_slices(&pieces).unwrap();
                let mut out = [0; 10];
                source.read_into(&mut out[..step]).unwrap();
                assert_eq!(source.remaining(), 10 - step);
                assert_eq!(source.next_contiguous().is_empty(), step == 10);
                source.read_into(&mut out[step..]).unwrap();
                assert_eq!(out[..], flat);
                assert_eq!(source.read_into(&mut [0]), Err(Fault { copied: 0 }));

                let mut source = Source::from_io_slices(&pieces).unwrap();
                let mut taken = source.take(step);
                let mut rest = source.clone();
                let mut out = [0; 10];
                assert_eq!(taken.remaining(), step);
                taken.read_into(&mut out[..step]).unwrap();
                assert!(taken.next_contiguous().is_empty());
                rest.read_into(&mut out[step..]).unwrap();
                assert_eq!(out[..], flat);
                source.advance(100);
                assert!(source.is_empty());

                let (mut a, mut b, mut c) = (vec![0; first], vec![0; second - first], vec![0; 10 - second]);
                let mut targets = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b), IoSliceMut::new(&mut c)];
                let mut destination = Destination::from_io_slices(&mut targets).unwrap();
                destination.write_from(&flat[..step]).unwrap();
                let mut rest = destination.take(10);
                assert!(destination.is_empty());
                rest.write_from(&flat[step..]).unwrap();
                assert_eq!([a, b, c].concat(), flat);
            }
        }
    }
}

#[test]
fn more_than_there_is() {
    let mut source = Source::from_slice(b"abc");
    let mut out = [0; 5];
    assert_eq!(source.read_into(&mut out), Err(Fault { copied: 3 }));
    assert_eq!(out, *b"abc\0\0");
    let mut buffer = [1; 3];
    let mut destination = Destination::from_slice(&mut buffer);
    destination.truncate(2);
    assert_eq!(destination.write_from(b"xyz"), Err(Fault { copied: 2 }));
    assert_eq!(buffer, [b'x', b'y', 1]);
}

#[test]
fn sums_beyond_the_limit_are_refused() {
    let half = UserSlice::new(0, isize::MAX as usize);
    // SAFETY: never copied through.
    unsafe {
        assert!(Source::from_user_segments(&[half, UserSlice::new(0, 1)]).is_none());
        assert!(Source::from_user_segments(&[half, half, half]).is_none());
        assert_eq!(Source::from_user_segments(&[half]).unwrap().remaining(), isize::MAX as usize);
        assert!(Destination::from_user_segments(&[]).unwrap().is_empty());
    }
}
